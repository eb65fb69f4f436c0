//! Interrupt coalescing of a network interface, set and read back.

use super::super::{KnobError, SaveOld};
use super::HoldRequest;
use crate::drivers::ethtool::{self, Coalescing};
use crate::guard::Original;

/// `NIC:rx-usecs:100`, `NIC:tx-usecs:100`, `NIC:adaptive-rx:off`, `NIC:adaptive-tx:off`.
pub(super) fn parse(value: &str) -> Result<HoldRequest, String> {
    let form = || {
        "write coalescing=NIC:rx-usecs:N, NIC:tx-usecs:N, NIC:adaptive-rx:on|off or \
         NIC:adaptive-tx:on|off"
            .to_owned()
    };
    let mut parts = value.rsplitn(3, ':');
    let (Some(text), Some(key), Some(nic)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(form());
    };
    let us = || text.parse().map(Some).map_err(|_| form());
    let on = || match text {
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => Err(form()),
    };
    let mut wanted = Coalescing::default();
    match key {
        "rx-usecs" => wanted.rx_us = us()?,
        "tx-usecs" => wanted.tx_us = us()?,
        "adaptive-rx" => wanted.adaptive_rx = on()?,
        "adaptive-tx" => wanted.adaptive_tx = on()?,
        _ => return Err(form()),
    }
    Ok(HoldRequest::Coalescing { nic: nic.to_owned(), wanted })
}

/// Sets an interface; returns its former parameters. A driver may round, which the caller reads
/// back; one that keeps the old value is an error.
pub(super) fn set(
    nic: &str,
    wanted: &Coalescing,
    save: &mut impl SaveOld,
) -> Result<Coalescing, KnobError> {
    let before = ethtool::get(nic)?;
    if before.only(wanted) == *wanted {
        return Ok(before.only(wanted));
    }
    ethtool::refuse_cut_off(nic, wanted)?;
    let old = before.only(wanted);
    let original = |ours| Original::Coalescing { nic: nic.to_owned(), was: before, ours };
    save.values(&[original([before.texts(), wanted.texts()].concat())])?;
    ethtool::set(nic, wanted)?;
    let kept = ethtool::get(nic)?;
    save.values(&[original(kept.texts())])?;
    let now = kept.only(wanted);
    if now == old {
        let (wanted, found) = (wanted.to_string(), now.to_string());
        return Err(KnobError::NotKept { what: format!("coalescing of {nic}"), wanted, found });
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    #[test]
    fn one_parameter_is_named_and_the_rest_stays() {
        let HoldRequest::Coalescing { nic, wanted } = parse("eth0:rx-usecs:200").unwrap() else {
            panic!()
        };
        assert_eq!((nic.as_str(), wanted.rx_us, wanted.tx_us), ("eth0", Some(200), None));
        let HoldRequest::Coalescing { wanted, .. } = parse("eth0:adaptive-rx:off").unwrap() else {
            panic!()
        };
        assert_eq!(wanted.adaptive_rx, Some(false));
        for wrong in
            ["eth0", "eth0:rx-usecs", "eth0:rx-usecs:-1", "eth0:rings:5", "e:adaptive-rx:1"]
        {
            assert!(parse(wrong).unwrap_err().contains("write coalescing="), "{wrong}");
        }
    }

    #[test]
    fn a_nic_that_is_gone_saves_nothing() {
        let mut saved = Saved::default();
        let wanted = Coalescing { rx_us: Some(1), ..Coalescing::default() };
        assert!(
            set("lull-none", &wanted, &mut saved).unwrap_err().to_string().contains("lull-none")
        );
        assert_eq!(saved.originals, []);
    }
}
