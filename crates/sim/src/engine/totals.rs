//! Totals of an engine since the warm-up ended.

use super::Engine;
use lull_measure::{Gauge, Hertz, Joules, Latency, Missing, Nanos, Watts};
use std::ops::Range;

/// Everything counted since [`Engine::forget`], or since the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    /// Length of the counted time.
    pub span: Nanos,
    /// Apps, in the order of the model.
    pub apps: Vec<AppTotals>,
    /// Servers, tier by tier.
    pub servers: Vec<ServerTotals>,
}

/// The totals of an app's requests.
#[derive(Debug, Clone, PartialEq)]
pub struct AppTotals {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered.
    pub answered: u64,
    /// Requests refused by a full backlog.
    pub lost: u64,
    /// Exact sum of the response times of the answered requests.
    pub response_ns: u128,
    /// Distribution of the response times.
    pub latency: Latency,
}

/// The totals of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTotals {
    /// The tier, in the order of the model.
    pub tier: usize,
    /// Cores.
    pub cores: u32,
    /// Requests now at the cores: waiting for one, running, or holding one.
    pub present: u32,
    /// Requests now waiting for a core.
    pub waiting: u32,
    /// Requests now called here and not answered, wherever they are.
    pub pending: u32,
    /// Pieces of work that arrived.
    pub arrivals: u64,
    /// Pieces of work done.
    pub departures: u64,
    /// Integral over time of the requests at the cores.
    pub area_ns: u128,
    /// Sum over departures of the time at the cores.
    pub response_ns: u128,
    /// Calls answered.
    pub answers: u64,
    /// Frequency domains.
    pub domains: Vec<DomainTotals>,
    /// Static energy of machine and cores; `Missing` if the model gives the
    /// cores no P-states and hence no power.
    pub static_energy: Gauge<Joules>,
}

/// The totals of a frequency domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainTotals {
    /// Cores.
    pub cores: u32,
    /// Time that cores computed, summed over cores.
    pub busy: Nanos,
    /// Present P-state, an index; 0 if there are none.
    pub pstate: usize,
    /// Changes of frequency.
    pub switches: u64,
    /// Time in each P-state.
    pub residency: Vec<Nanos>,
    /// Dynamic energy; `Missing` without P-states.
    pub dynamic_energy: Gauge<Joules>,
}

impl ServerTotals {
    /// Busy share of the cores over a span.
    pub fn utilisation(&self, span: Nanos) -> f64 {
        let busy: u64 = self.domains.iter().map(|domain| domain.busy.0).sum();
        busy as f64 / (span.0 as f64 * f64::from(self.cores))
    }

    /// Static and dynamic energy.
    ///
    /// # Errors
    /// `Missing` if the model has no power.
    pub fn energy(&self) -> Gauge<Joules> {
        let dynamic = self.domains.iter().map(|domain| domain.dynamic_energy.clone());
        let dynamic = dynamic.sum::<Gauge<Joules>>()?;
        Ok(self.static_energy.clone()? + dynamic)
    }

    /// Little's law at the cores: the mean number present, and throughput times mean response.
    pub fn little(&self, span: Nanos) -> (f64, f64) {
        let span_ns = span.0 as f64;
        (self.area_ns as f64 / span_ns, self.response_ns as f64 / span_ns)
    }
}

impl Engine {
    /// Restarts all counts, at the end of a warm-up.
    pub fn forget(&mut self) {
        self.counted_since_ns = self.now_ns;
        #[cfg(debug_assertions)]
        {
            self.in_flight_at_start = self.requests.live();
        }
        for app in &mut self.apps {
            (app.arrived, app.answered, app.lost, app.response_ns) = (0, 0, 0, 0);
            app.latency.clear();
        }
        for server in &mut self.servers {
            server.forget(self.now_ns);
        }
        for (lane, domain) in self.lanes.iter().zip(&mut self.domains) {
            domain.forget(&self.hardware, lane.busy_at(self.now_ns), self.now_ns);
        }
        self.permits.iter_mut().for_each(|permits| permits.refused = 0);
    }

    /// Returns everything counted up to now.
    pub fn totals(&self) -> Totals {
        Totals {
            span: self.counted_span(),
            apps: (0..self.apps.len()).map(|app| self.app_totals(app)).collect(),
            servers: (0..self.servers.len()).map(|server| self.server_totals(server)).collect(),
        }
    }

    /// Length of the counted time.
    pub fn counted_span(&self) -> Nanos {
        Nanos(self.now_ns - self.counted_since_ns)
    }

    /// Number of servers.
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Indices of the servers of a tier; `None` if there is no such tier.
    pub fn servers_of(&self, tier: &str) -> Option<Range<usize>> {
        let at = self.tier_names.iter().position(|name| name == tier)?;
        let first = self.tiers[at].first as usize;
        Some(first..first + self.tiers[at].servers as usize)
    }

    /// Returns the totals of an app.
    pub fn app_totals(&self, app: usize) -> AppTotals {
        let app = &self.apps[app];
        AppTotals {
            arrived: app.arrived,
            answered: app.answered,
            lost: app.lost,
            response_ns: app.response_ns,
            latency: app.latency.to_latency(),
        }
    }

    /// Returns the totals of a server.
    pub fn server_totals(&self, server: usize) -> ServerTotals {
        let state = &self.servers[server];
        let counts = &state.counts;
        let plain = self.programs.plain[state.tier as usize];
        let domains: Vec<_> =
            (0..state.lanes as usize).map(|domain| self.domain_totals(server, domain)).collect();
        ServerTotals {
            tier: state.tier as usize,
            cores: domains.iter().map(|domain| domain.cores).sum(),
            present: state.present(),
            waiting: self.waiting(server),
            pending: if plain { state.present() } else { state.pending },
            arrivals: counts.arrivals,
            departures: counts.departures,
            area_ns: state.area_ns(self.now_ns),
            response_ns: counts.response_ns,
            answers: if plain { counts.departures } else { counts.answers },
            domains,
            static_energy: self.static_energy(server),
        }
    }

    /// Requests that wait for a core: those at the cores that have none.
    fn waiting(&self, server: usize) -> u32 {
        let lanes = (0..self.domain_count(server)).map(|domain| self.lane_of(server, domain));
        let with_core = lanes.map(|lane| self.lanes[lane].occupied());
        self.servers[server].present() - with_core.sum::<u32>()
    }

    /// Returns the totals of one frequency domain of a server.
    pub fn domain_totals(&self, server: usize, domain: usize) -> DomainTotals {
        let index = self.lane_of(server, domain);
        let (lane, domain) = (&self.lanes[index], &self.domains[index]);
        let busy_ns = lane.busy_at(self.now_ns);
        let mut residency: Vec<_> = domain.residency_ns.iter().copied().map(Nanos).collect();
        if let Some(time) = residency.get_mut(domain.pstate) {
            *time += Nanos(self.now_ns - domain.since_ns);
        }
        let modelled = self.hardware.pstate(domain).is_some();
        let energy = domain.dynamic_energy(&self.hardware, busy_ns).0 - domain.forgot_dynamic;
        DomainTotals {
            cores: lane.cores,
            busy: Nanos(busy_ns - domain.forgot_busy_ns),
            pstate: domain.pstate,
            switches: domain.switches,
            residency,
            dynamic_energy: if modelled { Ok(Joules(energy)) } else { Err(no_power()) },
        }
    }

    /// Energy of a server since time 0, whatever was forgotten.
    ///
    /// # Errors
    /// `Missing` if the model has no power.
    pub fn energy(&self, server: usize) -> Gauge<Joules> {
        let fixed = self.static_power(server)?.during(self.now());
        let lanes = (0..self.domain_count(server)).map(|domain| self.lane_of(server, domain));
        let dynamic = lanes.map(|lane| {
            let busy_ns = self.lanes[lane].busy_at(self.now_ns);
            self.domains[lane].dynamic_energy(&self.hardware, busy_ns)
        });
        Ok(fixed + dynamic.sum())
    }

    /// Time that the cores of a server's domain computed since time 0, summed
    /// over cores, whatever was forgotten.
    pub fn busy(&self, server: usize, domain: usize) -> Nanos {
        Nanos(self.lanes[self.lane_of(server, domain)].busy_at(self.now_ns))
    }

    /// Number of frequency domains of a server.
    pub fn domain_count(&self, server: usize) -> usize {
        self.servers[server].lanes as usize
    }

    /// P-state of a server's domain, an index; 0 if there are none.
    pub fn pstate(&self, server: usize, domain: usize) -> usize {
        self.domains[self.lane_of(server, domain)].pstate
    }

    /// Frequency of a server's domain; `None` without P-states.
    pub fn frequency(&self, server: usize, domain: usize) -> Option<Hertz> {
        let domain = &self.domains[self.lane_of(server, domain)];
        self.hardware.pstate(domain).map(|state| state.frequency)
    }

    /// Number of apps.
    pub fn app_count(&self) -> usize {
        self.apps.len()
    }

    /// Requests of an app answered, and the sum of their times in nanoseconds.
    pub fn responses(&self, app: usize) -> (u64, u128) {
        (self.apps[app].answered, self.apps[app].response_ns)
    }

    /// Static energy of the machine and of its cores over the counted time.
    fn static_energy(&self, server: usize) -> Gauge<Joules> {
        Ok(self.static_power(server)?.during(self.counted_span()))
    }

    fn static_power(&self, server: usize) -> Gauge<Watts> {
        let state = &self.servers[server];
        let lanes = state.first_lane as usize..(state.first_lane + state.lanes) as usize;
        let machine = self.domains[lanes.start].machine;
        let whole = self.hardware.machines[machine as usize].0.ok_or_else(no_power)?;
        let cores = lanes.map(|lane| {
            let group = &self.hardware.groups[self.domains[lane].group as usize];
            group.static_watts.0 * f64::from(self.lanes[lane].cores)
        });
        Ok(Watts(whole.0 + cores.sum::<f64>()))
    }
}

/// Why there is no energy.
fn no_power() -> Missing {
    Missing::because("the model gives these cores no P-states, and so no power")
}
