//! The simulators from outside, in one program: each further program would compile and optimise
//! again the plants, which are generic, and the reading of models.

mod bad_models;
mod determinism;
mod gates;
mod hosts;
mod limits;
mod machine;
mod machine_parts;
mod netserver;
mod oversubscribed;
mod plant;
mod properties;
mod theory;
mod tiers;
