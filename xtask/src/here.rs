//! This machine, as the readers of a result need to know it.

/// The processor's name; none where the kernel does not report it.
pub fn cpu_model() -> Option<String> {
    let cpus = read("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map(|(_, name)| name.to_owned())
}

/// How many cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The kernel's release.
pub fn kernel() -> Option<String> {
    read("/proc/sys/kernel/osrelease")
}

/// Processor, cores and kernel, in a sentence.
pub fn describe_machine() -> String {
    let known = |fact: Option<String>| fact.unwrap_or_else(|| "unknown".to_owned());
    let (cpu, kernel) = (known(cpu_model()), known(kernel()));
    format!("Machine: {cpu}, {} cores, Linux {kernel}.", cores())
}

/// A file of the kernel, without the line's end.
pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
