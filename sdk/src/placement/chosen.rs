//! EPs that ONNX Runtime chose by a policy. If the app named a policy and no EP, the policy's name stands for the EPs
//! until the placement is known.

use std::borrow::Cow;

use epwatch_proto::{Accelerator, SelectionPolicy};

/// Returns the EPs of a request. If a policy stands for them, these are the EPs with nodes, without the CPU EP. If no node
/// left the CPU, the policy's name stays: either ONNX Runtime chose the CPU, or the chosen EP took no node.
pub(crate) fn chosen<'a>(
    requested_eps: &'a [String],
    with_nodes: impl Iterator<Item = impl AsRef<str>>,
) -> Cow<'a, [String]> {
    let is_policy = |ep: &String| SelectionPolicy::of_request(ep).is_some();
    if !requested_eps.iter().any(is_policy) {
        return Cow::Borrowed(requested_eps);
    }
    let mut eps: Vec<String> = Vec::new();
    for ep in with_nodes {
        let ep = ep.as_ref();
        if Accelerator::of_ep(ep) != Accelerator::Cpu && !eps.iter().any(|known| known == ep) {
            eps.push(ep.to_owned());
        }
    }
    match eps.is_empty() {
        true => Cow::Borrowed(requested_eps),
        false => Cow::Owned(eps),
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::placement::{CPU_EP, QNN_EP};

    use super::*;

    #[test]
    fn nodes_show_which_ep_a_policy_chose() {
        let by_policy = [SelectionPolicy::PreferNpu.in_request()];
        let of = |requested: &[String], eps: &[&str]| chosen(requested, eps.iter()).into_owned();
        assert_eq!(of(&by_policy, &[QNN_EP, CPU_EP, QNN_EP]), [QNN_EP]);
        assert_eq!(of(&by_policy, &[CPU_EP]), by_policy);
        assert_eq!(of(&by_policy, &[]), by_policy);
        // A request that names EPs is not what the session got.
        assert_eq!(of(&["mine".to_owned()], &[QNN_EP]), ["mine"]);
        assert!(of(&[], &[QNN_EP]).is_empty());
    }
}
