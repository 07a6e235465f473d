//! The number of turns of a Loop or a Scan, and the shapes of its body's inputs.

use crate::{
    graph::{Graph, Node, TensorId},
    tensor::Tensor,
};

/// The number of times that a body runs in a run of the model.
pub(crate) enum Turns {
    /// The node is not a loop.
    One,
    Fixed(u64),
    /// The number is unknown, for this reason.
    Unknown(&'static str),
}

/// Returns the turns of a node. `tensors` also has the tensors of its bodies, which were counted before.
pub(crate) fn of(node: &Node, tensors: &[Tensor]) -> Turns {
    match node.op_type.as_str() {
        "Loop" => of_loop(node, tensors),
        "Scan" => of_scan(node, tensors),
        _ => Turns::One,
    }
}

/// Returns the bodies of a node that a run may use. For an If with a constant condition, this is the branch that it
/// takes.
pub(crate) fn bodies_of<'a>(node: &'a Node, tensors: &[Tensor]) -> impl Iterator<Item = &'a Graph> {
    let condition = match node.op_type.as_str() {
        "If" => truth(node.input(0), tensors),
        _ => None,
    };
    let never = condition.map(|is_met| match is_met {
        true => "else_branch",
        false => "then_branch",
    });
    let attributes = node.attributes.iter();
    attributes
        .filter(move |attribute| never != Some(attribute.name.as_str()))
        .flat_map(|attribute| &attribute.graphs)
}

/// Returns the value of a condition that is a constant of the model.
fn truth(id: TensorId, tensors: &[Tensor]) -> Option<bool> {
    let tensor = tensors.get(id).filter(|_| id > 0)?;
    match tensor.ints.as_deref() {
        Some(&[value]) => Some(value != 0),
        _ => None,
    }
}

/// A Loop ends after its number of turns, or when its condition is false: before the first turn, or after each.
fn of_loop(node: &Node, tensors: &[Tensor]) -> Turns {
    let given = |at: usize| Some(node.input(at)).filter(|id| *id > 0);
    let most = given(0).map(|id| match tensors.get(id)?.ints.as_deref() {
        Some(&[most]) => Some(u64::try_from(most).unwrap_or(0)),
        _ => None,
    });
    let first = given(1).map_or(Some(true), |id| truth(id, tensors));
    if most == Some(Some(0)) || first == Some(false) {
        return Turns::Fixed(0);
    }
    if first.is_none() {
        return Turns::Unknown("the condition of its first turn is not a constant of the model");
    }
    let bodies = bodies_of(node, tensors);
    let next: Option<Vec<bool>> = bodies.map(|body| goes_on(body, tensors)).collect();
    let is_once = next.as_ref().is_some_and(|next| next.contains(&false));
    match (most, next) {
        // The loop has no limit of turns, or a limit of at least 1.
        (None | Some(Some(_)), _) if is_once => Turns::Fixed(1),
        (Some(Some(1)), _) => Turns::Fixed(1),
        (Some(Some(_)), None) => Turns::Unknown("a condition may end it before its last turn"),
        (Some(Some(most)), Some(_)) => Turns::Fixed(most),
        (None | Some(None), _) => {
            Turns::Unknown("the number of its turns is not a constant of the model")
        }
    }
}

/// Returns the condition after a turn. It is true if the body returns the condition that it got, else the body's
/// constant.
fn goes_on(body: &Graph, tensors: &[Tensor]) -> Option<bool> {
    let mut condition = *body.outputs.first()?;
    let given = body.inputs.get(1).map(|input| input.id);
    let makers = body.nodes.iter().rev();
    for node in makers.filter(|node| matches!(node.op_type.as_str(), "Identity" | "Cast")) {
        if node.outputs.contains(&condition) {
            condition = node.input(0);
        }
    }
    match Some(condition) == given {
        true => Some(true),
        false => truth(condition, tensors),
    }
}

fn of_scan(node: &Node, tensors: &[Tensor]) -> Turns {
    let unknown = Turns::Unknown("the length of what it scans has no fixed shape");
    let Some((first, axis)) = scanned(node).next() else {
        return unknown;
    };
    let shape = tensors
        .get(first)
        .and_then(|tensor| tensor.shape.as_deref());
    let turns = shape.and_then(|shape| shape.get(axis_of(axis, shape.len())?));
    turns.map_or(unknown, |turns| Turns::Fixed(*turns))
}

/// The inputs that a Scan goes through, each with its axis.
fn scanned(node: &Node) -> impl Iterator<Item = (TensorId, i64)> {
    let n = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(0);
    let first = node.inputs.len().saturating_sub(n);
    let axes = node.ints("scan_input_axes").unwrap_or_default();
    let each = node.inputs[first..].iter().enumerate();
    each.map(move |(at, id)| (*id, axes.get(at).copied().unwrap_or(0)))
}

fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    usize::try_from(at).ok().filter(|_| at < rank)
}

/// Returns the tensors that the node passes to a body: states unchanged, and a slice of each scanned input.
pub(crate) fn inputs_of(node: &Node, body: &Graph, tensors: &[Tensor]) -> Vec<(TensorId, Tensor)> {
    let given = |id: TensorId| tensors.get(id).filter(|_| id > 0);
    let inputs = body.inputs.iter().map(|input| input.id);
    let shape_alone = |tensor: &Tensor| Tensor::of(tensor.shape.clone(), tensor.element);
    match node.op_type.as_str() {
        "Loop" => {
            let states = inputs.skip(2).zip(node.inputs.iter().skip(2));
            let each = states.filter_map(|(id, outer)| Some((id, shape_alone(given(*outer)?))));
            each.collect()
        }
        "Scan" => {
            let n_states = node.inputs.len() - scanned(node).count();
            let axes: Vec<(TensorId, i64)> = scanned(node).collect();
            let each = inputs.zip(&node.inputs).enumerate();
            let each = each.filter_map(|(at, (id, outer))| {
                let mut tensor = shape_alone(given(*outer)?);
                if let Some((_, axis)) = at.checked_sub(n_states).and_then(|at| axes.get(at)) {
                    let shape = tensor.shape.as_mut()?;
                    shape.remove(axis_of(*axis, shape.len())?);
                }
                Some((id, tensor))
            });
            each.collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use crate::{ManifestDocument, counted};

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut len) = (vec![number << 3 | 2], bytes.len());
        while len >= 0x80 {
            out.push(len.to_le_bytes()[0] | 0x80);
            len >>= 7;
        }
        out.push(len.to_le_bytes()[0]);
        out.extend(bytes);
        out
    }

    fn node(
        op: &str,
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        bodies: &[Vec<u8>],
    ) -> Vec<u8> {
        let inputs = inputs.iter().map(|text| field(1, text.as_bytes()));
        let outputs = outputs.iter().map(|text| field(2, text.as_bytes()));
        // Each attribute has its name and the graph.
        let bodies = bodies
            .iter()
            .map(|body| field(5, &[field(1, b"body"), field(6, body)].concat()));
        let own = [field(3, name.as_bytes()), field(4, op.as_bytes())];
        let all: Vec<Vec<u8>> = inputs.chain(outputs).chain(own).chain(bodies).collect();
        field(1, &all.concat())
    }

    /// An input or output of the kind `element`, with a shape.
    fn declared(number: u8, name: &str, element: u8, dims: &[u8]) -> Vec<u8> {
        let dims: Vec<Vec<u8>> = dims.iter().map(|dim| field(1, &[8, *dim])).collect();
        let tensor = [vec![8, element], field(2, &dims.concat())].concat();
        let kind = field(2, &field(1, &tensor));
        field(number, &[field(1, name.as_bytes()), kind].concat())
    }

    fn trips(name: &str, trips: u64) -> Vec<u8> {
        let parts = [
            vec![16, 7],
            field(8, name.as_bytes()),
            field(9, &trips.to_le_bytes()),
        ];
        field(5, &parts.concat())
    }

    /// A body that multiplies [1, 8] with [8, 8], which are 64 MACs, or runs `inner` instead.
    fn body(depth: &str, inner: Option<Vec<u8>>) -> Vec<u8> {
        let name = |text: &str| format!("{text}{depth}");
        let (given, state, [next, made]) = (name("c"), name("s"), [name("cond"), name("out")]);
        let work = node("MatMul", &name("m"), &[&state, "w"], &[&made], &[]);
        [
            inner.unwrap_or(work),
            node("Identity", "", &[&given], &[&next], &[]),
            declared(11, &name("i"), 7, &[]),
            declared(11, &given, 9, &[]),
            declared(11, &state, 1, &[1, 8]),
            field(12, &field(1, next.as_bytes())),
            declared(12, &made, 1, &[1, 8]),
        ]
        .concat()
    }

    /// Counts a model with the weight `w`, the input `x`, and these parts of its graph.
    fn model(ir_version: u8, parts: &[Vec<u8>]) -> ManifestDocument {
        let weight = field(5, &[vec![8, 8, 8, 8, 16, 1], field(8, b"w")].concat());
        let graph = [parts.concat(), weight, declared(11, "x", 1, &[1, 8])].concat();
        let bytes = [vec![8, ir_version], field(7, &graph)].concat();
        counted(Cursor::new(bytes), "0".repeat(64), &[]).unwrap()
    }

    fn outer(inner: Option<Vec<u8>>) -> Vec<u8> {
        node("Loop", "outer", &["n", "", "x"], &["y"], &[body("", inner)])
    }

    #[track_caller]
    fn check(found: &ManifestDocument, macs: u64, why: Option<&str>) {
        let text = found.not_counted();
        assert_eq!(found.side_car.total_macs, macs, "{text:?}");
        match why {
            None => assert_eq!(text, None),
            Some(why) => {
                assert!(found.has_unknown_turns(), "{found:?}");
                let text = text.unwrap();
                assert!(text.contains(why), "{text}");
            }
        }
    }

    /// From version 4 of the format an initializer that is also an input is a default, which an app replaces.
    #[test]
    fn a_default_of_an_input_is_no_number_of_turns() {
        let (turns, input) = (trips("n", 3), declared(11, "n", 7, &[]));
        let is_open = Some("Loop outer are not known");
        for (ir_version, parts, macs, why) in [
            (8, [turns.clone(), Vec::new()], 3 * 64, None),
            (3, [turns.clone(), input.clone()], 3 * 64, None),
            (4, [turns.clone(), input.clone()], 0, is_open),
            (8, [input, turns], 0, is_open),
        ] {
            let parts = [outer(None), parts.concat()];
            check(&model(ir_version, &parts), macs, why);
        }
    }

    /// Returns a boolean constant.
    fn flag(name: &str, value: u8) -> Vec<u8> {
        let parts = [vec![16, 9], field(8, name.as_bytes()), field(9, &[value])];
        field(5, &parts.concat())
    }

    /// A constant false condition ends a Loop before its first turn or after it. An earlier version counted all turns.
    #[test]
    fn a_condition_decides_the_turns_of_a_loop() {
        let given = node("Identity", "", &["c"], &["cond"], &[]);
        let looped = |next: &[u8], trips: &str| {
            let body = [
                node("MatMul", "m", &["s", "w"], &["out"], &[]),
                next.to_vec(),
                declared(11, "i", 7, &[]),
                declared(11, "c", 9, &[]),
                declared(11, "s", 1, &[1, 8]),
                field(12, &field(1, b"cond")),
                declared(12, "out", 1, &[1, 8]),
            ];
            node(
                "Loop",
                "outer",
                &[trips, "first", "x"],
                &["y"],
                &[body.concat()],
            )
        };
        let computed = node("Less", "", &["i", "n"], &["cond"], &[]);
        let cast = node("Cast", "", &["flag"], &["first"], &[]);
        let cast = [cast, flag("flag", 0)].concat();
        let input = declared(11, "first", 9, &[]);
        let (first, early, open) = (
            Some("the condition of its first turn is not a constant"),
            Some("a condition may end it before its last turn"),
            Some("the number of its turns is not a constant"),
        );
        for (begins, next, n, macs, why) in [
            (flag("first", 1), &given, "n", 3 * 64, None),
            (flag("first", 0), &given, "n", 0, None),
            (flag("first", 0), &computed, "", 0, None),
            (cast, &given, "n", 0, None),
            (input, &given, "n", 0, first),
            (flag("first", 1), &flag("cond", 1), "n", 3 * 64, None),
            (flag("first", 1), &flag("cond", 0), "n", 64, None),
            (flag("first", 1), &flag("cond", 0), "", 64, None),
            (flag("first", 1), &flag("cond", 1), "", 0, open),
            (flag("first", 1), &computed, "n", 0, early),
        ] {
            let parts = [begins, looped(next, n), trips("n", 3)];
            check(&model(8, &parts), macs, why);
        }
    }

    /// The branch that an If never takes costs nothing. An earlier version counted it if it was the larger one.
    #[test]
    fn an_if_counts_the_branch_that_it_takes() {
        let product = |from: &str, to: &str| node("MatMul", to, &[from, "w"], &[to], &[]);
        let branch = |name: &str, nodes: &[u8], out: &str| {
            let body = [nodes, &declared(12, out, 1, &[1, 8])].concat();
            field(5, &[field(1, name.as_bytes()), field(6, &body)].concat())
        };
        let decided = |condition: Vec<u8>| {
            let twice = [product("x", "a"), product("a", "b")].concat();
            let parts = [
                field(1, b"is"),
                field(2, b"y"),
                field(3, b"if"),
                field(4, b"If"),
                branch("then_branch", &product("x", "t"), "t"),
                branch("else_branch", &twice, "b"),
            ];
            model(8, &[field(1, &parts.concat()), condition])
        };
        for (condition, macs) in [
            (flag("is", 1), 64),
            (flag("is", 0), 2 * 64),
            (declared(11, "is", 9, &[]), 2 * 64),
        ] {
            check(&decided(condition), macs, None);
        }
    }

    /// The default of an input does not fix the shape that a Reshape makes.
    #[test]
    fn a_default_of_an_input_is_no_shape() {
        let reshape = node("Reshape", "r", &["x", "to"], &["y"], &[]);
        let product = node("MatMul", "m", &["y", "w"], &["z"], &[]);
        let to = field(
            5,
            &[
                vec![8, 2, 16, 7],
                field(8, b"to"),
                field(9, &[1_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat()),
            ]
            .concat(),
        );
        let parts = [reshape, product, to];
        assert_eq!(model(8, &parts).side_car.total_macs, 64);
        let found = model(8, &[parts.concat(), declared(11, "to", 7, &[2])]);
        let text = found.not_counted().unwrap();
        assert!(text.contains("tensor y has no fixed shape"), "{text}");
    }

    /// More MACs than a side-car may have are not written: 2^53, which JSON holds exactly.
    #[test]
    fn more_macs_than_are_counted_are_unknown() {
        let why = "Loop outer are not known, so that there are no shares: with it there are more than 9007199254740992";
        for (turns, macs, why) in [
            (1 << 47, 1 << 53, None),
            ((1 << 47) + 1, 0, Some(why)),
            (1 << 62, 0, Some(why)),
        ] {
            check(&model(8, &[outer(None), trips("n", turns)]), macs, why);
        }
        // With two nodes, the second one exceeds the limit.
        let again = node("Loop", "again", &["n", "", "x"], &["z"], &[body("", None)]);
        let found = model(8, &[outer(None), again, trips("n", 1 << 47)]);
        check(&found, 1 << 53, Some("Loop again are not known"));
    }

    /// The text names the node with unknown turns, and not only the model's node whose body has it.
    #[test]
    fn a_loop_in_a_body_is_named() {
        let inner = || {
            node(
                "Loop",
                "inner",
                &["k", "", "s"],
                &["out"],
                &[body("2", None)],
            )
        };
        let branches = [inner()].map(|inner| [inner, declared(12, "out", 1, &[1, 8])].concat());
        let branch = node("If", "outer", &["b"], &["y"], &branches);
        let k = declared(11, "k", 7, &[]);
        for (op, outer) in [("Loop", outer(Some(inner()))), ("If", branch)] {
            let found = model(8, &[outer, trips("n", 7), k.clone()]);
            let why = format!(
                "the MACs of {op} outer are not known, so that there are no shares: Loop inner in it: the number of its turns"
            );
            check(&found, 0, Some(&why));
            assert_eq!(found.uncounted[0].op_type, op);
            assert_eq!(found.uncounted[0].name, "outer");
        }
    }
}
