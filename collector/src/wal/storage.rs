//! File operations of the WAL as a trait. The implementation here uses a directory. Tests use a storage in memory that
//! fails, tears writes and loses unsynced content.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::direct_io::{self, DirectFile};

/// A flat directory of files.
pub(crate) trait Storage: Debug + Send + Sync {
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes an empty file or empties an existing one. The file is durable only after [`Storage::rename`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
    /// Renames durably, and replaces a file that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, which may reappear after a power loss.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Free bytes for this process.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file.
pub(crate) trait SegmentFile: Debug + Send + Sync {
    /// Writes all of `bytes`. After an error any part of them may be written.
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes all of `bytes` at the end of the file's valid content, and fills their last block with zeros. After an
    /// error any part of them may be written.
    fn append_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads until `buffer` is full or the file ends; returns the number of bytes.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Makes all writes durable.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Extends an empty file to `len` zeros with allocated space.
    fn reserve(&self, len: u64) -> io::Result<()>;
}

/// Replaces a small file durably. After an error it holds the old content or the new one.
pub(crate) fn replace(storage: &dyn Storage, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    let file = storage.create(&temporary)?;
    file.write_at(0, content)?;
    file.sync()?;
    storage.rename(&temporary, name)
}

/// A real directory.
#[derive(Debug)]
pub(crate) struct DirStorage {
    dir: PathBuf,
}

impl DirStorage {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }
}

impl Storage for DirStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                continue;
            }
            // Other names are skipped, because the WAL's own names are UTF-8.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let path = self.dir.join(name);
        let file = file.mode(0o600).open(&path)?;
        Ok(Arc::new(DirFile::new(file, &path)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        let path = self.dir.join(name);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Arc::new(DirFile::new(file, &path)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))?;
        File::open(&self.dir)?.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

#[derive(Debug)]
struct DirFile {
    file: File,
    /// The file for appends and for reads of whole blocks; `None` if the file system has no direct I/O.
    direct: Option<DirectFile>,
}

impl DirFile {
    fn new(file: File, path: &Path) -> Self {
        let direct = DirectFile::open(path);
        Self { file, direct }
    }
}

/// True if the disk's blocks are larger than ours; then the page cache is used.
fn is_unfit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error())
}

impl SegmentFile for DirFile {
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }

    fn append_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            match direct.append(position, bytes) {
                Err(error) if is_unfit(&error) => {}
                written => return written,
            }
        }
        self.write_at(position, bytes)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(direct) = &self.direct
            && direct_io::are_blocks(position, buffer)
        {
            match direct.read(position, buffer) {
                Err(error) if is_unfit(&error) => {}
                read => return read,
            }
        }
        let mut filled = 0;
        while filled < buffer.len() {
            match self
                .file
                .read_at(&mut buffer[filled..], position + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        use rustix::{fs, io::Errno};
        match fs::fallocate(&self.file, fs::FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill_with_zeros(self, len),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes zeros, for file systems without `fallocate`.
fn fill_with_zeros(file: &dyn SegmentFile, len: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut position = 0;
    while position < len {
        let n = usize::try_from(len - position).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_at(position, &zeros[..n])?;
        position += n as u64;
    }
    Ok(())
}
