//! The system calls of a process that serves connections, and the filter that refuses all others.
//!
//! A refused call returns `EPERM`: no program needs one of them to continue, and a library that
//! tries one (a newer C library, for example) continues without it. A list of what is allowed is
//! complete by construction: opening files, `socket`, `connect`, `execve`, `clone`, `ptrace`,
//! `sched_setaffinity`, `kill` and whatever a later kernel adds are not in it.

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Calls that pass with any arguments: input and output on descriptors that are there, memory,
/// time, waiting, the end.
const ALLOWED: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Calls that a process needs besides that connects to servers itself: files (which Landlock
/// restricts), and threads, on which the C library resolves names. Sockets are in [`filter`].
const FOR_CLIENTS: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_clone3,
    libc::SYS_connect,
    libc::SYS_eventfd2,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sendmmsg,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_statx,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Installs the filter on the calling thread.
pub(super) fn forbid() -> Result<(), String> {
    install(&[])
}

/// Installs the filter of a process that connects to servers itself.
pub(super) fn forbid_for_client() -> Result<(), String> {
    install(FOR_CLIENTS)
}

fn install(more: &[c_long]) -> Result<(), String> {
    let program = filter(more).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

fn filter(more: &[c_long]) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // Memory may be mapped and protected, but never so that it can be executed.
    let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC.cast_unsigned().into());
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![is(2, executable.clone(), 0)?])?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![is(2, executable, 0)?])?]);
    let one_of = |argument: u8, values: &[i32]| {
        values
            .iter()
            .map(|value| {
                let equal = is(argument, SeccompCmpOp::Eq, value.cast_unsigned().into())?;
                SeccompRule::new(vec![equal])
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let flags = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    rules.insert(libc::SYS_fcntl, one_of(1, &flags)?);
    rules.insert(libc::SYS_ioctl, one_of(1, &[libc::FIONBIO.try_into().unwrap_or_default()])?);
    rules.insert(libc::SYS_setsockopt, one_of(1, &[libc::IPPROTO_TCP])?);
    if !more.is_empty() {
        // Musl and older C libraries make threads by it; processes are made by the same call
        // without this flag.
        let thread = libc::CLONE_THREAD.cast_unsigned().into();
        let is_thread = is(0, SeccompCmpOp::MaskedEq(thread), thread)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
        // Landlock does not restrict the sockets of other programs on this machine.
        rules.insert(libc::SYS_socket, one_of(0, &[libc::AF_INET, libc::AF_INET6])?);
    }
    rules.extend(more.iter().map(|call| (*call, Vec::new())));
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)?.try_into()
}

fn is(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_other_processes_and_files_is_in_no_list() {
        let forbidden = [
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_tgkill,
            libc::SYS_pidfd_send_signal,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setattr,
            libc::SYS_setpriority,
            libc::SYS_prctl,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
        ];
        assert!(forbidden.iter().all(|call| !ALLOWED.contains(call)));
        let of_clients = [libc::SYS_openat, libc::SYS_connect, libc::SYS_clone3];
        let by_nobody = forbidden.iter().filter(|call| !of_clients.contains(call));
        assert!(by_nobody.clone().all(|call| !FOR_CLIENTS.contains(call)));
        assert!(filter(&[]).is_ok() && filter(FOR_CLIENTS).is_ok());
    }
}
