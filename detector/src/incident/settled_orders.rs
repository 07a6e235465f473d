//! Orders that are safe to obey. Two people may give an incident orders with one number, and the store may show the later
//! one first. So an order counts for the detector once two readings in a row showed it as the one that counts. The run
//! loop reads orders with it; it obeys none.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::Order;

use crate::run::verdict_store::{StoreError, StoredOrder, VerdictStore};

/// Orders of the last reading.
#[derive(Debug, Default)]
pub(crate) struct SettledOrders {
    /// Ids of the orders that counted.
    shown: BTreeSet<String>,
}

impl SettledOrders {
    /// Returns, by number, the orders of these incidents that this reading and the last both showed. Only orders after
    /// the given numbers are read.
    pub(crate) async fn read(
        &mut self,
        store: &VerdictStore,
        after: &BTreeMap<String, u64>,
    ) -> Result<Vec<(String, Order)>, StoreError> {
        Ok(self.settled(store.orders(after).await?))
    }

    fn settled(&mut self, orders: Vec<StoredOrder>) -> Vec<(String, Order)> {
        let shown = orders.iter().map(|order| order.id.clone()).collect();
        let before = std::mem::replace(&mut self.shown, shown);
        let mut settled: Vec<(String, Order)> = Vec::new();
        // An incident's orders are applied by number. Orders after a new one wait for it.
        let mut waiting = BTreeSet::new();
        for StoredOrder {
            id,
            incident,
            order,
        } in orders
        {
            if waiting.contains(&incident) || !before.contains(&id) {
                waiting.insert(incident);
            } else {
                settled.push((incident, order));
            }
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_model::OrderKind;
    use jiff::Timestamp;

    fn order(id: &str, incident: &str, n: u64) -> StoredOrder {
        StoredOrder {
            id: id.to_owned(),
            incident: incident.to_owned(),
            order: Order {
                n,
                kind: OrderKind::Ack,
                who: id.to_owned(),
                at: Timestamp::UNIX_EPOCH,
                until: None,
                why: String::new(),
            },
        }
    }

    #[track_caller]
    fn check(orders: &mut SettledOrders, shown: &[(&str, &str, u64)], expected: &[&str]) {
        let shown = shown
            .iter()
            .map(|(id, incident, n)| order(id, incident, *n));
        let settled = orders.settled(shown.collect()).into_iter();
        let settled: Vec<String> = settled.map(|(_, order)| order.who).collect();
        assert_eq!(settled, expected);
    }

    /// Bob's order was given later, and is visible first.
    #[test]
    fn an_order_is_obeyed_once_two_readings_showed_that_it_counts() {
        let mut orders = SettledOrders::default();
        check(&mut orders, &[("bob", "i", 1)], &[]);
        check(&mut orders, &[("ada", "i", 1)], &[]);
        check(&mut orders, &[("ada", "i", 1), ("eve", "i", 2)], &["ada"]);
        check(&mut orders, &[("eve", "i", 2)], &["eve"]);
    }

    #[test]
    fn orders_behind_one_that_waits_wait_too() {
        let mut orders = SettledOrders::default();
        check(&mut orders, &[("second", "i", 2), ("other", "k", 1)], &[]);
        let all = [("first", "i", 1), ("second", "i", 2), ("other", "k", 1)];
        check(&mut orders, &all, &["other"]);
        check(&mut orders, &all[..2], &["first", "second"]);
    }
}
