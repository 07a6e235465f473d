//! The list of nodes in the error of a session that forbids the CPU.

/// Names and op types in `{ name: a, type: X }{ name: b, type: Y }`.
pub(super) fn unsupported_nodes(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split("{ name: ").skip(1).filter_map(|item| {
        let item = item.split(" }").next().unwrap_or(item);
        item.rsplit_once(", type: ")
            .map(|(name, op_type)| (name, op_type.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_found() {
        let found: Vec<_> =
            unsupported_nodes("{ name: a/b, type: ArgMax }{ name: , type: TopK }, x").collect();
        assert_eq!(found, [("a/b", "ArgMax"), ("", "TopK")]);
        assert_eq!(unsupported_nodes("{ name: cut").count(), 0);
    }
}
