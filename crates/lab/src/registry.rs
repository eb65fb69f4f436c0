//! All experiments that `lull lab` can run, and how one is found by its name.

use crate::experiment::{Experiment, LabError};
use crate::limiters;
use crate::papers::{
    ccds_2026_bayop as bayop, micro_2017_eetl as eetl, socc_2025_reef as reef,
    tpds_2024_ahq as ahq, trios_2013_ntier as ntier,
};
use crate::theory;

/// Every experiment, one line each.
pub static ALL: &[&Experiment] = &[
    &theory::EXPERIMENT,
    &ntier::table2::EXPERIMENT,
    &ntier::table3::EXPERIMENT,
    &ntier::burst::EXPERIMENT,
    &ntier::period::EXPERIMENT,
    &ntier::adaptive::EXPERIMENT,
    &ntier::goodput::EXPERIMENT,
    &ntier::error::EXPERIMENT,
    &ahq::table2::EXPERIMENT,
    &ahq::knee::EXPERIMENT,
    &ahq::cores::EXPERIMENT,
    &ahq::ways::EXPERIMENT,
    &ahq::load::EXPERIMENT,
    &ahq::fluctuating::EXPERIMENT,
    &ahq::dip::EXPERIMENT,
    &ahq::tlt::EXPERIMENT,
    &ahq::scalability::EXPERIMENT,
    &ahq::space_time::EXPERIMENT,
    &eetl::dvfs::EXPERIMENT,
    &eetl::amp::EXPERIMENT,
    &eetl::types::EXPERIMENT,
    &eetl::power::EXPERIMENT,
    &eetl::octopus::EXPERIMENT,
    &eetl::spikes::EXPERIMENT,
    &eetl::mix::EXPERIMENT,
    &eetl::noncpu::EXPERIMENT,
    &eetl::targets::EXPERIMENT,
    &eetl::gains::EXPERIMENT,
    &eetl::clairvoyant::EXPERIMENT,
    &reef::c6::EXPERIMENT,
    &reef::batch::EXPERIMENT,
    &reef::lambda::EXPERIMENT,
    &reef::policies::EXPERIMENT,
    &reef::packing::EXPERIMENT,
    &reef::ipq::EXPERIMENT,
    &reef::os::EXPERIMENT,
    &reef::overhead::EXPERIMENT,
    &reef::qoswc::EXPERIMENT,
    &reef::colocation::EXPERIMENT,
    &limiters::EXPERIMENT,
    &bayop::sweep::EXPERIMENT,
    &bayop::netpipe::EXPERIMENT,
    &bayop::model::EXPERIMENT,
    &bayop::search::EXPERIMENT,
    &bayop::day::EXPERIMENT,
    &bayop::silo::EXPERIMENT,
    &bayop::tailbench::EXPERIMENT,
    &bayop::policy_day::EXPERIMENT,
];

/// Returns the experiment of this name.
///
/// # Errors
/// [`LabError::Unknown`], which lists all names, if no experiment has the name.
pub fn find(name: &str) -> Result<&'static Experiment, LabError> {
    let known = || ALL.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", ");
    let unknown = || LabError::Unknown { name: name.to_owned(), known: known() };
    ALL.iter().copied().find(|experiment| experiment.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_a_slip_lists_them() {
        let names: BTreeSet<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), ALL.len());
        let text = find("ntier").unwrap_err().to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}
