//! The cores of load clients.

use super::{Config, LoadSection};
use crate::located::InputError;
use lull_control::Machine;

impl LoadSection {
    /// Returns the arguments of `lull load` that start its client.
    pub fn arguments(&self) -> Vec<String> {
        let options = [
            ("--rate", Some(self.rate.to_string())),
            ("--arrivals", Some(self.arrivals.to_string())),
            ("--connections", Some(self.connections.to_string())),
            ("--cores", self.cores.as_ref().map(ToString::to_string)),
        ];
        let given = options.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        let command = ["lull".to_owned(), "load".to_owned(), self.target.to_string()];
        command.into_iter().chain(given.flatten()).chain(self.extra.iter().cloned()).collect()
    }
}

impl Config {
    /// Rejects cores of load clients that a machine does not have.
    ///
    /// # Errors
    /// The load at fault.
    pub(crate) fn check_load_cores(&self, machine: &Machine) -> Result<(), InputError> {
        let all = machine.all_cores();
        for (index, load) in self.loads.iter().enumerate() {
            let Some(cores) = &load.cores else { continue };
            if cores.is_empty() || !cores.is_subset(&all) {
                let message = format!("`{cores}` is not part of this machine's `{all}`");
                return Err(self.source.error(&format!("load[{index}].cores"), message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;

    fn config(cores: &str) -> Config {
        let text = format!(
            "[policy]\nname = \"even\"\n[[app]]\nname = \"web\"\n\
             class = \"latency-critical\"\nobjectives = [{{ p95 = \"5ms\" }}]\n\
             ideal = \"1ms\"\nstart = [\"nginx\"]\n[[load]]\napp = \"web\"\n\
             target = \"http://127.0.0.1:80/\"\nrate = \"100/s\"\n{cores}extra = [\"--spin\", \"9us\"]\n"
        );
        Config::from_located(Located::embedded("lull.toml", &text)).unwrap()
    }

    #[test]
    fn a_load_on_cores_that_the_machine_lacks_is_refused_with_file_line_and_key() {
        let plant = MemoryPlant::new(4, Vec::new());
        let checked = |cores| config(cores).check_load_cores(plant.machine());
        assert!(checked("").is_ok() && checked("cores = \"3\"\n").is_ok());
        let refused = checked("cores = \"3-4\"\n").unwrap_err().to_string();
        let why = "lull.toml:13: load[0].cores: `3-4` is not part of this machine's `0-3`";
        assert!(refused.starts_with(why), "{refused}");
    }

    #[test]
    fn the_client_gets_its_cores_as_an_argument() {
        let with_cores = config("cores = \"1,3\"\n").loads[0].arguments();
        let at = with_cores.iter().position(|word| word == "--cores").unwrap();
        assert_eq!(with_cores[at..], ["--cores", "1,3", "--spin", "9us"]);
        assert!(!config("").loads[0].arguments().contains(&"--cores".to_owned()));
    }
}
