use epwatch_model::Severity;

use crate::judge::verdict::doubt_networks;
use crate::testing::{Fleet, device, judged, reference};

use super::*;

/// Devices of one kind: the number of the first, their count, and their networks. Each wide network has `of_wide`
/// narrow ones.
#[derive(Clone, Copy)]
struct Crowd {
    first: u32,
    devices: u32,
    networks: u32,
    of_wide: u32,
    is_established: bool,
}

impl Crowd {
    fn members(self) -> impl Iterator<Item = (Installation, Sender)> {
        (0..self.devices).map(move |n| {
            // Crowds have different networks.
            let narrow = self.first * 1_000 + n % self.networks + 1;
            let wide = self.first * 1_000 + n % self.networks / self.of_wide + 1;
            let network = Some(NetworkHash { narrow, wide });
            let is_own = false;
            (device(self.first + n), Sender { is_own, network })
        })
    }
}

fn senders(crowds: &[Crowd]) -> Senders {
    let of = crowds.iter().flat_map(|crowd| crowd.members());
    let old = crowds.iter().filter(|crowd| crowd.is_established);
    let old: HashSet<Installation> = old.flat_map(|crowd| crowd.members()).map(|m| m.0).collect();
    let app_is_new = old.is_empty();
    Senders::new(of, old, app_is_new)
}

/// Whether a page on `hit` devices, which are slower and fell back, holds if there are `healthy` ones too.
fn pages(hit: Crowd, healthy: Crowd) -> bool {
    let fleet = Fleet {
        devices: hit.devices + healthy.devices,
        runs: 25,
        ..Fleet::with_fallback(f64::from(hit.devices) / f64::from(hit.devices + healthy.devices))
    };
    let healthy = Crowd {
        first: hit.devices,
        ..healthy
    };
    let window = fleet.window();
    if judged(&window, None, &reference()).severity != Severity::Page {
        return false;
    }
    let weighed = senders(&[hit, healthy]).weigh(window.installations());
    let rest = window.without(&weighed.left_out);
    judged(&rest, None, &reference()).severity == Severity::Page
}

fn crowd(devices: u32, networks: u32, is_established: bool) -> Crowd {
    Crowd {
        first: 0,
        devices,
        networks,
        of_wide: 1,
        is_established,
    }
}

const NOBODY: Crowd = Crowd {
    first: 0,
    devices: 0,
    networks: 1,
    of_wide: 1,
    is_established: true,
};

/// The forged installations waited for eight days. The fleet also has a hundred phones with a history.
#[test]
fn patient_forged_installations_of_some_networks_do_not_page() {
    let honest = crowd(100, 80, true);
    for networks in [1, 3, 20, 100, 200] {
        assert!(!pages(crowd(300, networks, false), honest), "{networks}");
    }
    // Waiting for a month does not help forgers with a few networks.
    for networks in [1, 3, 20] {
        assert!(!pages(crowd(300, networks, true), honest), "{networks}");
    }
    // The owner of an IPv6 /32 has a narrow network for each device.
    for is_established in [false, true] {
        let owner = Crowd {
            of_wide: 1_000,
            ..crowd(300, 300, is_established)
        };
        assert!(!pages(owner, honest));
    }
}

/// A small cohort has few votes, but devices of one network are still never enough.
#[test]
fn one_network_does_not_outvote_a_small_cohort() {
    for devices in 3..30 {
        for networks in [1, 2] {
            let forged = crowd(devices, networks, true);
            assert!(!pages(forged, crowd(5, 5, true)), "{devices} on {networks}");
        }
    }
}

#[test]
fn decoys_do_not_take_the_place_of_networks_that_are_left_out() {
    // 400 decoys are in one wide network, two on each narrow one, and 30 more are elsewhere.
    let decoys = Crowd {
        first: 0,
        of_wide: 1_000,
        ..crowd(400, 200, false)
    };
    let others = Crowd {
        first: 400,
        ..crowd(30, 30, false)
    };
    let honest = Crowd {
        first: 430,
        ..crowd(100, 80, true)
    };
    let weighed = senders(&[decoys, others, honest]).weigh((0..530).map(device));
    assert!((0..430).all(|n| weighed.left_out.contains(&device(n))));
}

/// Real fleets with a real fallback page.
#[test]
fn honest_fleets_page() {
    // First day one of a new app, then day thirty.
    for is_established in [false, true] {
        let fleet = Crowd {
            of_wide: 3,
            ..crowd(200, 150, is_established)
        };
        assert!(pages(fleet, NOBODY), "{is_established}");
    }
    assert!(pages(crowd(8, 4, true), NOBODY));
    assert!(pages(crowd(8, 3, true), NOBODY));
    // A third of an established fleet is hit.
    assert!(pages(crowd(60, 50, true), crowd(140, 100, true)));
    // All new devices are hit on a launch day, in an app that also has older devices.
    assert!(pages(crowd(1_000, 700, false), crowd(100, 80, true)));
    // Half of the phones are behind one carrier's two networks.
    let carrier = |n: u32| Sender {
        is_own: false,
        network: Some(NetworkHash {
            narrow: 1_000_000 + n % 2,
            wide: 1_000_000,
        }),
    };
    let others = crowd(100, 80, true);
    let behind = (0..100).map(|n| (device(100 + n), carrier(n)));
    let old: HashSet<Installation> = (0..200).map(device).collect();
    let senders = Senders::new(others.members().chain(behind), old, false);
    let window = Fleet {
        devices: 200,
        ..Fleet::with_fallback(1.0)
    };
    let window = window.window();
    let rest = window.without(&senders.weigh(window.installations()).left_out);
    assert!(rest.n_devices() >= 50, "{}", rest.n_devices());
    assert_eq!(judged(&rest, None, &reference()).severity, Severity::Page);
}

#[test]
fn own_devices_and_those_without_a_network_are_never_left_out() {
    let sender = |is_own| Sender {
        is_own,
        network: is_own.then_some(NetworkHash { narrow: 1, wide: 1 }),
    };
    let of = (0..60).map(|n| (device(n), sender(n < 30)));
    let senders = Senders::new(of, HashSet::default(), true);
    let weighed = senders.weigh((0..70).map(device));
    let expected = Weighed {
        left_out: HashSet::default(),
        public: 30,
        not_own: 40,
        unweighed: 30,
    };
    assert_eq!(weighed, expected);
}

/// A page says how far it can be trusted. A page that does not hold becomes a ticket.
#[test]
fn a_page_says_that_its_app_is_new_or_that_nothing_weighs_it() {
    let told = |weighed: Weighed, holds, app_is_new| {
        let window = Fleet::with_fallback(1.0).window();
        let mut verdict = judged(&window, None, &reference());
        doubt_networks(&mut verdict, &weighed, holds, app_is_new);
        let reasons = verdict.reasons.iter().map(ToString::to_string);
        (verdict.severity, reasons.collect::<Vec<_>>().join("; "))
    };
    let weighed = |public, unweighed| Weighed {
        left_out: (0..20).map(device).collect(),
        public,
        not_own: public,
        unweighed,
    };
    let (severity, text) = told(weighed(60, 0), false, false);
    assert_eq!(severity, Severity::Ticket);
    assert!(text.contains("without 20 of 60 devices"), "{text}");
    let (severity, text) = told(weighed(60, 0), true, true);
    assert_eq!(severity, Severity::Page);
    assert!(text.contains("this app is new"), "{text}");
    let (severity, text) = told(weighed(60, 40), true, false);
    assert_eq!(severity, Severity::Page);
    assert!(
        text.contains("40 of 60 devices come from private addresses"),
        "{text}"
    );
    let (_, text) = told(weighed(0, 0), true, true);
    assert!(!text.contains("new") && !text.contains("private"), "{text}");
}

/// The least number of networks, and of made-up devices on them, with which a page succeeds if there are `healthy`
/// devices too.
fn price(healthy: u32, is_app_new: bool, is_established: bool) -> (u32, u32) {
    let healthy = crowd(healthy, healthy, !is_app_new);
    let mut best = (u32::MAX, u32::MAX);
    for each in [1, 5, 10] {
        let holds = |n: u32| pages(crowd(each * n, n, is_established), healthy);
        let (mut fails, mut works) = (0, 1);
        while works < best.0.min(2_000) && !holds(works) {
            (fails, works) = (works, works * 2);
        }
        while works - fails > 1 {
            let middle = fails.midpoint(works);
            match holds(middle) {
                true => works = middle,
                false => fails = middle,
            }
        }
        if holds(works) {
            best = best.min((works, each * works));
        }
    }
    best
}

/// The table of docs/security.md is written from the rule, with `EPWATCH_BLESS=1`.
#[test]
fn the_price_of_a_false_page_is_the_one_in_the_docs() {
    let costs = |(networks, devices): (u32, u32), requests: u32| {
        format!(
            "{networks} networks, {devices} devices, {} requests",
            devices * requests
        )
    };
    let mut table = String::from(
        "| healthy devices in the cohort | app known for 14 days, under 10 days of waiting | 10 days of waiting | \
         app in its first 10 days |\n|---|---|---|---|\n",
    );
    let mut least_with_history = u32::MAX;
    for healthy in [5, 20, 200] {
        let [newer, established, new_app] = [(false, false), (false, true), (true, false)]
            .map(|(new, old)| price(healthy, new, old));
        least_with_history = least_with_history.min(newer.0);
        table += &format!(
            "| {healthy} | {} | {} | {} |\n",
            costs(newer, 1),
            // Each device needs two requests: one to be admitted, and one in the window. Requests in between do not
            // help.
            costs(established, 2),
            costs(new_app, 1)
        );
    }
    assert!(least_with_history > 200, "{table}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/security.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once("<!-- price -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /price -->").unwrap();
    let expected = format!("{before}<!-- price -->\n{table}<!-- /price -->{after}");
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        std::fs::write(path, expected).unwrap();
    } else {
        assert_eq!(text, expected, "write it with EPWATCH_BLESS=1");
    }
}
