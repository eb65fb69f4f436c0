//! Fits to machines whose constants are known.

use super::*;
use proptest::prelude::*;

/// A machine that takes what its constants say.
#[derive(Debug, Clone)]
struct Machine {
    cores: u16,
    base: f64,
    busy: f64,
    dynamic: f64,
    shallow: f64,
    lowest: Hertz,
    highest: Hertz,
}

const SERVER: Machine = Machine {
    cores: 8,
    base: 24.0,
    busy: 1.5,
    dynamic: 4.0,
    shallow: 0.8,
    lowest: Hertz(800_000_000),
    highest: Hertz(2_400_000_000),
};

impl Machine {
    fn steps(&self) -> Vec<Step> {
        let cores: Vec<_> = (0..self.cores).map(CoreId).collect();
        steps(&cores, true, true)
    }

    /// Returns the sample of a step; busy cores are not quite busy, idle ones not quite idle.
    fn sample(&self, step: &Step) -> PowerSample {
        let share = step.frequency.unwrap_or(1.0);
        let hertz = self.lowest.0 as f64 + share * (self.highest.0 - self.lowest.0) as f64;
        let core = |id: u16| {
            let busy = if step.busy.contains(&CoreId(id)) { 0.99 } else { 0.01 };
            let deep = if step.shallow { 0.0 } else { (1.0 - busy) * 0.95 };
            CoreSample { busy, frequency: Some(Hertz(hertz as u64)), deep: Some(deep) }
        };
        let cores: Vec<_> = (0..self.cores).map(core).collect();
        let cube = (hertz / self.highest.0 as f64).powi(3);
        let of_core = |core: &CoreSample| {
            let shallow = 1.0 - core.busy - core.deep.unwrap();
            core.busy * (self.busy + self.dynamic * cube) + self.shallow * shallow
        };
        PowerSample { power: Watts(self.base + cores.iter().map(of_core).sum::<f64>()), cores }
    }

    fn samples(&self) -> Vec<PowerSample> {
        self.steps().iter().map(|step| self.sample(step)).collect()
    }
}

fn near(found: Watts, wanted: f64, within: f64) {
    assert!((found.0 - wanted).abs() <= within, "{found:?} for {wanted} W");
}

#[test]
fn steps_vary_one_thing_at_a_time_and_repeat_nothing() {
    let cores: Vec<_> = (0..4).map(CoreId).collect();
    let all = steps(&cores, true, true);
    assert_eq!(all.len(), 3 * 4 + 2);
    assert!(all.iter().enumerate().all(|(at, step)| !all[..at].contains(step)));
    assert_eq!(steps(&cores[..1], false, false).len(), 2, "no core, and the only one");
    assert!(steps(&cores, false, true).iter().all(|step| step.frequency.is_none()));
}

proptest! {
    #[test]
    fn constants_are_found_again(
        cores in 2_u16..64,
        base in 5.0..200.0_f64,
        busy in 0.5..20.0_f64,
        dynamic in 0.5..20.0_f64,
        shallow in 0.1..5.0_f64,
    ) {
        let machine = Machine { cores, base, busy, dynamic, shallow, ..SERVER };
        let fit = fit(&machine.samples()).unwrap();
        let most = base + f64::from(cores) * (busy + dynamic);
        near(fit.model.base, base, 1e-6 * most);
        near(fit.model.busy, busy, 1e-6 * most);
        near(fit.model.by_frequency.unwrap().dynamic, dynamic, 1e-6 * most);
        near(fit.model.shallow.unwrap(), shallow, 1e-6 * most);
        prop_assert!(fit.left_out.0 <= 1e-6 * most && fit.explained > 0.999_999);
        prop_assert_eq!(fit.notes, Vec::<String>::new());
    }

    /// A meter off by 1 % of the base either way: what is predicted for any load
    /// is off by little more, and the fit says how much.
    #[test]
    fn a_noisy_meter_gives_a_model_that_knows_its_error(
        noise in prop::collection::vec(-1.0..1.0_f64, 14),
    ) {
        let mut samples = SERVER.samples();
        prop_assert_eq!(samples.len(), noise.len());
        for (sample, noise) in samples.iter_mut().zip(&noise) {
            sample.power.0 += 0.01 * SERVER.base * noise;
        }
        let fit = fit(&samples).unwrap();
        prop_assert!(fit.left_out.0 <= 5.0 * 0.01 * SERVER.base, "{:?}", fit);
        prop_assert!(fit.left_out >= fit.residual, "{:?}", fit);
        prop_assert!(fit.model.base.0 >= 0.0 && fit.model.busy.0 >= 0.0, "{:?}", fit);
        near(fit.model.base, SERVER.base, 0.05 * SERVER.base);
    }
}

#[test]
fn what_was_not_varied_or_read_is_left_out_by_name() {
    let cores: Vec<_> = (0..4).map(CoreId).collect();
    let mut samples: Vec<_> =
        steps(&cores, false, false).iter().map(|step| SERVER.sample(step)).collect();
    let blind = fit(&samples).unwrap();
    assert!(blind.model.by_frequency.is_none() && blind.model.shallow.is_none(), "{blind:?}");
    assert!(blind.notes[0].contains("ran at one frequency"), "{:?}", blind.notes);
    assert!(blind.notes[1].contains("equally deep"), "{:?}", blind.notes);
    for core in samples.iter_mut().flat_map(|sample| &mut sample.cores) {
        (core.frequency, core.deep) = (None, None);
    }
    let unread = fit(&samples).unwrap();
    assert!(unread.notes.iter().all(|note| note.contains("can be read")), "{:?}", unread.notes);
    near(unread.model.busy, SERVER.busy + SERVER.dynamic, 0.1);
}

#[test]
fn no_constant_is_negative_whatever_the_meter_says() {
    // Deeper states that cost more than shallow ones: what is best without such a term.
    let odd = Machine { shallow: -2.0, ..SERVER };
    let fit = fit(&odd.samples()).unwrap();
    assert_eq!(fit.model.shallow, Some(Watts(0.0)));
    assert!(fit.notes[0].contains("shallow idle states cost nothing"), "{:?}", fit.notes);
    assert!(fit.residual.0 > 0.1, "and the residual shows it: {fit:?}");
}

#[test]
fn a_meter_of_something_else_is_refused_with_its_figures() {
    let mut samples = SERVER.samples();
    for sample in &mut samples {
        sample.power = Watts(55.0);
    }
    let why = fit(&samples).unwrap_err();
    assert_eq!(why, FitError::Flat { idle: 55.0, busy: 55.0 });
    assert!(why.to_string().contains("55.000 W"), "{why}");
    samples[3].power = Watts(f64::NAN);
    assert!(matches!(fit(&samples), Err(FitError::Nonsense(_))));
    let few = fit(&SERVER.samples()[..2]).unwrap_err();
    assert!(matches!(few, FitError::Few { found: 2, .. }), "{few}");
}
