//! The RPCs besides Upload: deletion, manifests, certified placements. The device port has proved the app key before;
//! manifests and placements need one that no app carries.
//!
//! Manifests and placements go directly into the store, unlike reports: a release pipeline sends them rarely, and a
//! retry is harmless. They never touch the WAL.

mod certified;
mod manifest;

use std::sync::Arc;
use std::time::Duration;

use clickhouse::{Row, RowWrite};
use epwatch_proto::{InstallationId, ParseError, v1};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{Code, Request, Response, Status};

use crate::deletions::Deletions;
use crate::ingest::auth::Caller;
use crate::ingest::limits::DeletionLimits;
use crate::metrics::Metrics;
use crate::server::reject_reason::RejectReason;
use crate::server::retry;
use crate::store::{Sink, note_failure};
use epwatch_server::Clock;

/// Manifests have up to 4 MiB, and many callers may hold a key that may send them.
const AT_ONCE: usize = 4;
const BUSY: Duration = Duration::from_secs(1);
/// Retry delay while the store does not answer.
const AWAY: Duration = Duration::from_secs(5);
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Calls {
    deletions: Arc<Deletions>,
    sink: Sink,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    limits: DeletionLimits,
    room: Semaphore,
}

impl Calls {
    pub(crate) fn new(
        limits: DeletionLimits,
        deletions: Arc<Deletions>,
        sink: Sink,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            deletions,
            sink,
            clock,
            metrics,
            limits,
            room: Semaphore::new(AT_ONCE),
        }
    }

    /// The secret proves the ownership of the installation. The key only limits who can fill the list.
    pub(crate) async fn delete_installation(
        &self,
        mut request: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        let caller = Caller::of(&mut request);
        let secret = request.into_inner().secret;
        if secret.len() != SECRET_BYTES {
            // Never the bytes themselves: they are the installation's password.
            let text = format!(
                "secret: expected {SECRET_BYTES} bytes, got {}",
                secret.len()
            );
            return Err(Status::invalid_argument(text));
        }
        let installation = InstallationId::from_secret(&secret);
        let tombstoned_at_unix_ms = match self.deletions.buried_at(&installation) {
            // A repetition costs nothing.
            Some(at_ms) => at_ms,
            None => self.bury(&caller, installation).await?,
        };
        Ok(Response::new(v1::DeleteInstallationResponse {
            tombstoned_at_unix_ms,
        }))
    }

    async fn bury(&self, caller: &Caller, installation: InstallationId) -> Result<i64, Status> {
        if let Err(wait) = self.limits.take(caller, self.clock.now_us()) {
            let text = "too many deletions with this app key, or from this network";
            let status = retry::later(Code::ResourceExhausted, text, wait);
            return Err(RejectReason::Quota.mark(status));
        }
        let at_ms = self.deletions.bury(installation).await?;
        let n_pending = self.deletions.n_pending();
        self.metrics.deletions_pending.set(n_pending);
        Ok(at_ms)
    }

    pub(crate) async fn put_model_manifest(
        &self,
        mut request: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        let Caller { scope, .. } = Caller::of(&mut request);
        let _room = self.room()?;
        let put =
            manifest::ManifestCall::try_from(request.into_inner()).map_err(|e| refused(&e))?;
        let row = put.row(&scope, self.now_ms());
        self.store::<manifest::ManifestRow<'static>>("model_manifests", &[row])
            .await?;
        Ok(Response::new(v1::PutModelManifestResponse {
            manifest_sha256: put.sha256.as_bytes().to_vec().into(),
        }))
    }

    pub(crate) async fn put_certified_placement(
        &self,
        mut request: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        let Caller { scope, .. } = Caller::of(&mut request);
        let _room = self.room()?;
        let put =
            certified::PlacementCall::try_from(request.into_inner()).map_err(|e| refused(&e))?;
        let stored_at_unix_ms = self.now_ms();
        let row = put.row(&scope, stored_at_unix_ms);
        self.store::<certified::PlacementRow<'static>>("certified_placements", &[row])
            .await?;
        Ok(Response::new(v1::PutCertifiedPlacementResponse {
            stored_at_unix_ms,
        }))
    }

    fn room(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.room
            .try_acquire()
            .map_err(|_| retry::later(Code::ResourceExhausted, "too many calls of this kind", BUSY))
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_us() / 1000).unwrap_or(i64::MAX)
    }

    async fn store<T>(&self, table: &'static str, rows: &[T::Value<'_>]) -> Result<(), Status>
    where
        T: Row + RowWrite,
    {
        let away = || retry::later(Code::Unavailable, "the store does not answer", AWAY);
        let inserting = self.sink.insert::<T>(table, rows, None);
        match tokio::time::timeout(STORE_TIMEOUT, inserting).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                note_failure(&self.metrics, table, &error);
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
