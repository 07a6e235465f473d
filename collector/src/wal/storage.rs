//! The few file operations the WAL needs, as a trait: the real one over a directory, and in tests
//! one in memory that fails, tears writes and forgets what was not synced.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::direct_io::{self, DirectFile};

/// A flat directory of files.
pub(crate) trait Storage: Debug + Send + Sync {
    /// Returns the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes an empty file, replacing one of that name. Not durable before [`Storage::rename`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
    /// Renames over whatever has the new name; durable once it returned.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; may come back after a power loss.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns how many bytes are free for this process.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file.
pub(crate) trait SegmentFile: Debug + Send + Sync {
    /// Writes all of `bytes`; after an error any part of them may be there.
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes all of `bytes`, which begin at the end of what counts in the file: what follows in their
    /// last block becomes zeros. After an error any part of them may be there.
    fn append_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads until `buffer` is full or the file ends; returns how much.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns once everything written is durable.
    fn sync(&self) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Lengthens an empty file to `len` zeros for which the disk has set space aside.
    fn reserve(&self, len: u64) -> io::Result<()>;
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
            // A name that is no UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let path = self.dir.join(name);
        Ok(Arc::new(DirFile::new(file.open(&path)?, &path)))
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
    /// For what is large; `None` where the file system has no such thing.
    direct: Option<DirectFile>,
}

impl DirFile {
    fn new(file: File, path: &Path) -> Self {
        let direct = DirectFile::open(path);
        Self { file, direct }
    }
}

/// The disk's blocks are larger than ours: through the page cache then.
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

/// For file systems that cannot set space aside.
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
