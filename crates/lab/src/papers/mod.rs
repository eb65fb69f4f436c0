//! One directory a paper, named year-venue-subject: what it prints as data,
//! and the experiments that hold us to it.

#[path = "2024-tpds-ahq/mod.rs"]
pub(crate) mod tpds_2024_ahq;
#[path = "2013-trios-ntier/mod.rs"]
pub(crate) mod trios_2013_ntier;

#[path = "2026-ccds-bayop/mod.rs"]
pub(crate) mod ccds_2026_bayop;
#[path = "2017-micro-eetl/mod.rs"]
pub(crate) mod micro_2017_eetl;

#[path = "2025-socc-reef/mod.rs"]
pub(crate) mod socc_2025_reef;
