//! The file of baselines, which all processes of the app share. Used on the SDK's own thread.

use std::{io, path::PathBuf};

use crate::{
    baselines::{BaselineSet, BaselineUpdate},
    folder::{
        self,
        files::{self, FileLock},
    },
    installation::{self, Secret},
    policy,
};

#[derive(Debug)]
pub(super) struct BaselineFile {
    dir: PathBuf,
    settled_runs: u64,
}

impl BaselineFile {
    pub(super) fn new(dir: PathBuf, settled_runs: u64) -> Self {
        Self { dir, settled_runs }
    }

    /// Reads the file. A file that the SDK did not write counts as lost.
    ///
    /// # Errors
    /// Fails if the file cannot be read now, for example because the app has too many open files. The file stays.
    pub(super) fn read(&self) -> io::Result<BaselineSet> {
        let path = self.dir.join(folder::BASELINES);
        Ok(
            match files::read_ours(&path, policy::MAX_BASELINES_BYTES)? {
                Some(bytes) => BaselineSet::parse(&bytes, self.settled_runs),
                None => BaselineSet::new(self.settled_runs),
            },
        )
    }

    /// Adds updates to the file, unless another process has forgotten the installation since. None of its data may be
    /// written after a wipe.
    pub(super) fn add(
        &self,
        updates: &[BaselineUpdate],
        secret: Option<&Secret>,
    ) -> io::Result<()> {
        let _lock = FileLock::wait(&self.dir.join(folder::LOCK))?;
        if !secret.is_some_and(|secret| installation::is_still(&self.dir, secret)) {
            return Ok(());
        }
        let mut baselines = self.read()?;
        for update in updates {
            baselines.apply(update);
        }
        files::replace(&self.dir.join(folder::BASELINES), &baselines.to_bytes())
    }
}
