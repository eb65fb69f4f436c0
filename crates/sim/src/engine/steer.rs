//! Steering a running engine: P-states of frequency domains.

use super::Engine;
use crate::timers::TimerPurpose;

impl Engine {
    /// Sets a server's frequency domain to a P-state (an index, fastest first),
    /// as of now. Returns whether that was a change; an index beyond the
    /// slowest P-state means the slowest.
    ///
    /// While a machine with a transition time changes, its cores draw power
    /// and compute nothing.
    pub fn set_pstate(&mut self, server: usize, domain: usize, pstate: usize) -> bool {
        let lane = self.lane_of(server, domain);
        let state = &self.domains[lane];
        let group = state.group;
        let last = self.hardware.groups[group as usize].pstates.len().saturating_sub(1);
        let pstate = pstate.min(last);
        if pstate == state.pstate {
            return false;
        }
        let now_ns = self.now_ns;
        self.lanes[lane].advance(now_ns);
        let busy_ns = self.lanes[lane].busy_ns;
        let domain = &mut self.domains[lane];
        domain.bill(&self.hardware, busy_ns, now_ns);
        domain.pstate = pstate;
        domain.switches += 1;
        let transition_ns = self.hardware.machines[domain.machine as usize].1;
        if transition_ns == 0 {
            self.lanes[lane].set_speed(self.hardware.speed(group, pstate));
        } else {
            // A change during a transition restarts it; the timer of the first is then
            // stale, which `resume` sees by its sequence number.
            let resumes = self.set_timer(now_ns + transition_ns, TimerPurpose::Resume, lane);
            self.domains[lane].resumes = Some(resumes);
            self.lanes[lane].set_speed(0.0);
        }
        self.retime(lane);
        true
    }

    /// A transition is over, unless another began since.
    pub(super) fn resume(&mut self, lane: usize, sequence: u64) {
        let domain = &mut self.domains[lane];
        if domain.resumes != Some(sequence) {
            return;
        }
        domain.resumes = None;
        let speed = self.hardware.speed(domain.group, domain.pstate);
        self.lanes[lane].advance(self.now_ns);
        self.lanes[lane].set_speed(speed);
        self.retime(lane);
    }

    /// The lane of a server's domain.
    pub(super) fn lane_of(&self, server: usize, domain: usize) -> usize {
        let server = &self.servers[server];
        assert!(domain < server.lanes as usize, "the server has {} domains", server.lanes);
        server.first_lane as usize + domain
    }
}
