//! All RPCs except Upload: deletion, manifests, certified placements. The device port has already checked the app key.
//! Manifests and placements need a key of kind `pipeline`, which no app contains.
//!
//! Manifests and placements go directly into the store, unlike reports: a release pipeline sends them rarely, and a
//! retry is harmless. They never touch the WAL.

mod block;
mod certified;
mod manifest;

use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::{InstallationId, ModelHash, ParseError, v1};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{Code, Request, Response, Status};

use self::block::block_of;
use self::certified::{CERTIFIED, CertifiedModel, PlacementCall};
use self::manifest::{MANIFESTS, ManifestCall};
use crate::context::Context;
use crate::deletions::Deletions;
use crate::encode::EncodedBlock;
use crate::ingest::auth::{Caller, Scope};
use crate::ingest::limits::{Buckets, DeletionLimits, PipelineLimits};
use crate::server::reject_reason::RejectReason;
use crate::server::retry;
use crate::store::note_failure;
use crate::wal::WalOffset;

/// The most such calls at once: manifests have up to 4 MiB, and many callers may have a key that allows them.
const AT_ONCE: usize = 4;
const BUSY: Duration = Duration::from_secs(1);
/// Retry delay while the store does not answer.
const AWAY: Duration = Duration::from_secs(5);
/// Retry delay for the deletion of an installation that the store does not know.
const UNKNOWN: Duration = Duration::from_secs(600);
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Calls {
    context: Arc<Context>,
    deletions: Arc<Deletions>,
    limits: DeletionLimits,
    of_pipelines: PipelineLimits,
    room: Semaphore,
}

impl Calls {
    pub(crate) fn new(context: Arc<Context>, deletions: Arc<Deletions>) -> Self {
        Self {
            deletions,
            limits: DeletionLimits::new(&context.config.limits),
            of_pipelines: PipelineLimits::new(&context.config.limits),
            room: Semaphore::new(AT_ONCE),
            context,
        }
    }

    /// The secret proves that the caller owns the installation. The key only limits who can fill the list.
    pub(crate) async fn delete_installation(
        &self,
        mut request: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        let caller = Caller::of(&mut request);
        let secret = request.into_inner().secret;
        if secret.len() != SECRET_BYTES {
            // The text never contains the bytes themselves, because they are the installation's password.
            let text = format!(
                "secret: expected {SECRET_BYTES} bytes, got {}",
                secret.len()
            );
            return Err(Status::invalid_argument(text));
        }
        let installation = InstallationId::from_secret(&secret);
        let tombstoned_at_unix_ms = match self.deletions.tombstoned_at(&installation) {
            // A repeated deletion takes nothing from the limits.
            Some(at_ms) => at_ms,
            None => self.add_tombstone(&caller, installation).await?,
        };
        Ok(Response::new(v1::DeleteInstallationResponse {
            tombstoned_at_unix_ms,
            installation_id: installation.as_bytes().to_vec().into(),
        }))
    }

    async fn add_tombstone(
        &self,
        caller: &Caller,
        installation: InstallationId,
    ) -> Result<i64, Status> {
        if let Err(wait) = self.limits.take(caller, self.context.clock.now_us()) {
            let text = "too many deletions with this app key, or from this network";
            let status = retry::later(Code::ResourceExhausted, text, wait);
            return Err(RejectReason::Quota.mark(status));
        }
        if self.deletions.is_full() {
            self.check_received(installation).await?;
        }
        let wal_end = WalOffset(self.context.wal.stats().end);
        let at_ms = self.deletions.add_tombstone(installation, wal_end).await?;
        self.deletions.show_open(&self.context.metrics);
        Ok(at_ms)
    }

    /// Refuses the deletion of an installation that the store does not know. If its reports are still in a WAL, the
    /// store knows it by the time the device tries again.
    async fn check_received(&self, installation: InstallationId) -> Result<(), Status> {
        let asking = self.deletions.is_received(&self.context.sink, installation);
        match tokio::time::timeout(STORE_TIMEOUT, asking).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                self.context.metrics.deletions_unknown_refused.inc();
                let text = "too many deletions of installations that sent no report";
                let status = retry::later(Code::ResourceExhausted, text, UNKNOWN);
                Err(RejectReason::Quota.mark(status))
            }
            Ok(Err(error)) => {
                note_failure(&self.context.metrics, "tombstones", &error);
                Err(retry::later(
                    Code::Unavailable,
                    "the store does not answer",
                    AWAY,
                ))
            }
            Err(_elapsed) => Err(retry::later(
                Code::Unavailable,
                "the store does not answer",
                AWAY,
            )),
        }
    }

    pub(crate) async fn put_model_manifest(
        &self,
        mut request: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        let Caller { scope, .. } = Caller::of(&mut request);
        let _room = self.room()?;
        self.take(&self.of_pipelines.manifests, &scope)?;
        let put = ManifestCall::read(request.into_inner(), scope, self.context.now_ms());
        let put = put.map_err(|e| refused(&e))?;
        let manifest_sha256 = put.sha256.as_bytes().to_vec().into();
        self.store("model_manifests", block_of(&MANIFESTS, put))
            .await?;
        Ok(Response::new(v1::PutModelManifestResponse {
            manifest_sha256,
        }))
    }

    pub(crate) async fn put_certified_placement(
        &self,
        mut request: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        let Caller { scope, .. } = Caller::of(&mut request);
        let _room = self.room()?;
        self.take(&self.of_pipelines.placements, &scope)?;
        let stored_at_unix_ms = self.context.now_ms();
        let request = request.into_inner();
        let request_id = request.request_id;
        let placement_sha256 = ModelHash::of(&request.placement).as_bytes().to_vec();
        let put = PlacementCall::read(request, scope, stored_at_unix_ms);
        let put = put.map_err(|e| refused(&e))?;
        self.check_certified(&put).await?;
        self.store("certified_placements", block_of(&CERTIFIED, put))
            .await?;
        Ok(Response::new(v1::PutCertifiedPlacementResponse {
            stored_at_unix_ms,
            request_id,
            placement_sha256: placement_sha256.into(),
        }))
    }

    /// Refuses a second model file under one id and version, unless the request asks to replace the first.
    async fn check_certified(&self, put: &PlacementCall) -> Result<(), Status> {
        let Some(sql) = put.certified_model_sql() else {
            return Ok(());
        };
        let away = || retry::later(Code::Unavailable, "the store does not answer", AWAY);
        let sink = &self.context.sink;
        let asking = sink.first::<CertifiedModel>("certified_placements", &sql);
        match tokio::time::timeout(STORE_TIMEOUT, asking).await {
            Ok(Ok(certified)) => match certified.and_then(|model| put.refusal(&model)) {
                Some(why) => Err(Status::failed_precondition(why)),
                None => Ok(()),
            },
            Ok(Err(error)) => {
                note_failure(&self.context.metrics, "certified_placements", &error);
                Err(away())
            }
            Err(_elapsed) => Err(away()),
        }
    }

    /// Takes one call from the limit of its key.
    fn take(&self, limit: &Buckets<String>, scope: &Scope) -> Result<(), Status> {
        let now_us = self.context.clock.now_us();
        let taken = limit.open().take(scope.describe(), 1, now_us);
        taken.map_err(|wait| {
            let text = "too many calls of this kind with this app key";
            RejectReason::Quota.mark(retry::later(Code::ResourceExhausted, text, wait))
        })
    }

    fn room(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.room
            .try_acquire()
            .map_err(|_| retry::later(Code::ResourceExhausted, "too many calls of this kind", BUSY))
    }

    async fn store(&self, table: &'static str, row: EncodedBlock) -> Result<(), Status> {
        let away = || retry::later(Code::Unavailable, "the store does not answer", AWAY);
        let inserting = self.context.sink.insert_body(table, &row, None);
        match tokio::time::timeout(STORE_TIMEOUT, inserting).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                note_failure(&self.context.metrics, table, &error);
                Err(away())
            }
            Err(_elapsed) => Err(away()),
        }
    }
}

/// Length of the SDK's secrets.
const SECRET_BYTES: usize = 32;

fn refused(error: &ParseError) -> Status {
    Status::invalid_argument(error.detail())
}
