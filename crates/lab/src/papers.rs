//! One module a paper, named venue, year and subject: the paper's numbers as data, and the
//! experiments that compare Lull with it.

pub(crate) mod ccds_2026_bayop;
pub(crate) mod micro_2017_eetl;
pub(crate) mod socc_2025_reef;
pub(crate) mod tpds_2024_ahq;
pub(crate) mod trios_2013_ntier;
