//! Memory that the agent shares with servers: the on-call page.

use lull_oncall::{PAGE_BYTES, Page, PageError};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A mapped page.
#[derive(Debug)]
pub struct SharedPage {
    at: NonNull<Page>,
    file: OwnedFd,
    /// Its name, if it has one.
    name: Option<PathBuf>,
}

// SAFETY: a page is made of atomics; the mapping is not a thread's own.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Makes a page that servers can open by [`SharedPage::path`] while this
    /// process lives, and that no process can truncate.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("lull-page", flags)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let page = Self { at: map(&file)?, file, name: None };
        page.format();
        Ok(page)
    }

    /// Makes an empty file a page. All of its memory is taken immediately: a server that
    /// writes where a full file system has no more to give dies as one that reads
    /// beyond the end.
    ///
    /// # Errors
    /// The kernel's error, of a full file system for one.
    pub fn fill(file: File, name: &Path) -> io::Result<Self> {
        fallocate(&file, FallocateFlags::empty(), 0, PAGE_BYTES as u64)?;
        let file = OwnedFd::from(file);
        let page = Self { at: map(&file)?, file, name: Some(name.to_owned()) };
        page.format();
        Ok(page)
    }

    /// A page that another agent made. Whether it can be truncated is not checked.
    ///
    /// # Errors
    /// A [`PageError`] if it is not a page of this version, or the kernel's error.
    pub fn of_file(file: File, name: &Path) -> io::Result<Self> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if bytes != PAGE_BYTES {
            return Err(io::Error::other(PageError::Length { found: bytes }));
        }
        let file = OwnedFd::from(file);
        let page = Self { at: map(&file)?, file, name: Some(name.to_owned()) };
        page.check(bytes).map_err(io::Error::other)?;
        Ok(page)
    }

    /// Returns the file of the page.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where servers open it; without a name, those of the same user or of root.
    pub fn path(&self) -> PathBuf {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let own = rustix::process::getpid().as_raw_nonzero();
        PathBuf::from(format!("/proc/{own}/fd/{}", self.file.as_fd().as_raw_fd()))
    }
}

fn map(file: &impl AsRawFd) -> io::Result<NonNull<Page>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (hint, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
    let at = unsafe { libc::mmap(hint, PAGE_BYTES, access, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))
}

impl Deref for SharedPage {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: a mapping of the size of a page, aligned to 4096, which lives
        // as long as `self`; a page is atomics, of which any bytes are valid.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, used no more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_oncall::Id;

    fn open(path: &Path) -> io::Result<SharedPage> {
        SharedPage::of_file(File::options().read(true).write(true).open(path)?, path)
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        let ours = SharedPage::create().unwrap();
        let theirs = open(&ours.path()).unwrap();
        ours.control().beat(7);
        assert_eq!(theirs.control().heartbeat_ns(), 7);
        assert!(theirs.record(Id(3)).unwrap().claim(9, 4, Default::default(), 0));
        assert_eq!(ours.record(Id(3)).unwrap().pid(), 9);
    }

    #[test]
    fn a_page_cannot_be_cut_short() {
        let page = SharedPage::create().unwrap();
        let file = File::options().write(true).open(page.path()).unwrap();
        assert!(file.set_len(100).is_err());
    }

    #[test]
    fn a_file_that_is_no_page_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("page");
        std::fs::write(&path, [7; 100]).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("100 bytes"), "{error}");
        let file = File::create(&path).unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("does not begin"), "{error}");
    }
}
