//! The cores that an interrupt may go to: `/proc/irq/N/smp_affinity_list`
//! (Documentation/core-api/irq/irq-affinity.rst).
//!
//! Interrupts that the kernel manages itself refuse with EIO or EPERM.

use super::super::KnobError;
use crate::Roots;
use crate::drivers::texts::TextWrite;
use lull_control::CoreSet;

/// Lets an interrupt go to these cores alone.
pub(super) fn affinity(
    roots: &Roots,
    number: u32,
    cores: &CoreSet,
) -> Result<Vec<TextWrite>, KnobError> {
    let path = roots.proc.join(format!("irq/{number}/smp_affinity_list"));
    if cores.is_empty() {
        return Err(KnobError::Nonsense(format!("interrupt {number} needs a core to go to")));
    }
    if !path.exists() {
        let list = roots.proc.join("interrupts");
        let list = list.display();
        return Err(KnobError::Nonsense(format!("there is no interrupt {number}; see {list}")));
    }
    Ok(vec![TextWrite::exactly(path, cores.to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn an_interrupt_that_is_not_there_or_has_nowhere_to_go_is_refused() {
        let tree = Tree::new();
        tree.write("proc/irq/24/smp_affinity_list", "0-3\n");
        let text = |number, cores: &CoreSet| affinity(&tree.roots(), number, cores);
        assert_eq!(text(24, &CoreSet::first(2)).unwrap()[0].text, "0-1");
        assert!(text(24, &CoreSet::default()).unwrap_err().to_string().contains("needs a core"));
        assert!(text(25, &CoreSet::first(2)).unwrap_err().to_string().contains("no interrupt 25"));
    }
}
