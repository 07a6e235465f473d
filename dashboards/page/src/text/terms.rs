//! Terms of the pages, each with a line of explanation. A page links the first occurrence of each term to that line at
//! its foot. The foot lists no term that the page does not have.

/// A term.
#[derive(Debug)]
pub(crate) struct Term {
    /// The term's anchor at the foot of the page is `term-` and this id.
    pub(crate) id: &'static str,
    /// The term as the foot of a page writes it.
    pub(crate) word: &'static str,
    /// The term's spellings in text; the first letter may also be a capital.
    spelt: &'static [&'static str],
    /// Its explanation in one line, at the foot of the page.
    pub(crate) line: &'static str,
}

/// Every term, in the order of the foot.
pub(crate) static TERMS: [Term; 15] = [
    Term {
        id: "cohort",
        word: "cohort",
        spelt: &["cohort", "cohorts"],
        line: "the devices that run one version of a model on one chipset",
    },
    Term {
        id: "window",
        word: "window",
        spelt: &["window", "windows"],
        line: "the time that one verdict is about; it is judged once, after its end",
    },
    Term {
        id: "severity",
        word: "page, ticket",
        spelt: &["ticket", "tickets"],
        line: "a page needs someone now, a ticket in working hours; a note is neither",
    },
    Term {
        id: "held",
        word: "held, mitigated",
        spelt: &["held by a directive", "mitigated"],
        line: "a directive took the devices off their accelerator; the fault itself is not repaired",
    },
    Term {
        id: "npu",
        word: "NPU",
        spelt: &["NPU"],
        line: "the phone's processor for neural networks; a model that falls back runs on the CPU instead, slower and hotter",
    },
    Term {
        id: "macs",
        word: "MACs",
        spelt: &["MACs"],
        line: "multiplications with an addition, the measure of a model's work",
    },
    Term {
        id: "benign",
        word: "belongs there",
        spelt: &["belongs there", "edge_quantization", "edge quantization"],
        line: "a node that the CPU runs by design, such as the conversion of inputs and outputs (edge_quantization)",
    },
    Term {
        id: "quantiles",
        word: "p10, median",
        spelt: &["p10", "median"],
        line: "one in ten runs, or half of them, are at least as fast",
    },
    Term {
        id: "cv",
        word: "CV",
        spelt: &["CV"],
        line: "coefficient of variation: the standard deviation of latencies over their mean; 0.05 is steady",
    },
    Term {
        id: "dip",
        word: "dip",
        spelt: &["dip"],
        line: "how far latencies are from a single hump; a small chance means two groups of runs",
    },
    Term {
        id: "chance",
        word: "chance",
        spelt: &["chance"],
        line: "how often a healthy cohort looks like this; a small one is what makes a verdict sure",
    },
    Term {
        id: "placement-change",
        word: "placement_change",
        spelt: &["placement_change", "slower_with_placement_change"],
        line: "more work on the CPU than before; slower_with_placement_change: on devices that are also slower",
    },
    Term {
        id: "slower-than",
        word: "slower_than_1.6x",
        spelt: &["slower_than_1.6x", "median_ratio"],
        line: "devices that are slower than their own past by this ratio; median_ratio is of all devices",
    },
    Term {
        id: "missing",
        word: "missing",
        spelt: &["missing, or on the way", "Missing"],
        line: "recorded on a device, and neither stored, dropped nor refused: lost, or on its way",
    },
    Term {
        id: "conflict",
        word: "conflict",
        spelt: &["conflict", "conflicts", "CONFLICT"],
        line: "two different reports with one key; the first one counts",
    },
];

/// Elements whose text gets no link: it has one, is a person's or a device's name, a headline, a drawing or a command.
const WITHOUT: [&str; 11] = [
    "a", "bdi", "h1", "svg", "pre", "option", "select", "button", "label", "summary", "textarea",
];

/// The element around a sentence of the detector, which contains names. Its terms are linked; terms in a name alone are
/// not.
pub(crate) const SENTENCE: &str = r#"<bdi class="say">"#;

/// Returns a term by its id.
pub(crate) fn term(id: &str) -> Option<&'static Term> {
    TERMS.iter().find(|term| term.id == id)
}

/// Links the first occurrence of each term in a page's content to its line at the foot. Hovering shows the line.
/// Removes the lines of other terms from the foot.
pub(crate) fn linked(html: &str) -> String {
    let main = html.find("<main").zip(html.find("</main>"));
    let Some((begin, end)) = main.filter(|(begin, end)| begin < end) else {
        return html.to_owned();
    };
    let mut out = String::with_capacity(html.len() + 4_096);
    out.push_str(&html[..begin]);
    let mut unlinked: Vec<&Term> = TERMS.iter().collect();
    // The open elements of `WITHOUT` and `SENTENCE`, and whether their text gets no link. A sentence's text gets links.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = &html[begin..end];
    while let Some(at) = rest.find('<') {
        let (text, tagged) = rest.split_at(at);
        push_text(&mut out, text, !open.contains(&true), &mut unlinked);
        // Every `>` in text and attributes is escaped, so this one ends the tag.
        let tag_end = tagged.find('>').map_or(tagged.len(), |end| end + 1);
        let (tag, after) = tagged.split_at(tag_end);
        out.push_str(tag);
        match tag.strip_prefix("</") {
            Some(name) if is_without(name) => drop(open.pop()),
            None if is_without(&tag[1..]) => open.push(tag != SENTENCE),
            _ => {}
        }
        rest = after;
    }
    push_text(&mut out, rest, !open.contains(&true), &mut unlinked);
    let mut foot = html[end..].to_owned();
    let content = &html[begin..end];
    // A word without a link, for example in a drawing, keeps its line.
    for term in unlinked {
        if !term.spelt.iter().any(|spelt| content.contains(spelt)) {
            foot = foot.replace(&line_of(term), "");
        }
    }
    out.push_str(&foot);
    out
}

/// Returns a term's line as the foot of a page has it.
pub(crate) fn line_of(term: &Term) -> String {
    let Term { id, word, line, .. } = term;
    format!(r#"<dt id="term-{id}">{word}</dt><dd>{line}</dd>"#)
}

fn is_without(tag: &str) -> bool {
    let name = tag.split([' ', '>', '/']).next().unwrap_or_default();
    WITHOUT.contains(&name)
}

/// Writes text with the first of each term linked.
fn push_text(out: &mut String, text: &str, may_link: bool, unlinked: &mut Vec<&Term>) {
    let mut rest = text;
    while may_link && !rest.trim().is_empty() {
        let found = unlinked.iter().enumerate().filter_map(|(n, term)| {
            let (at, length) = first_of(rest, term)?;
            Some((at, std::cmp::Reverse(length), n))
        });
        let Some((at, length, n)) = found.min() else {
            break;
        };
        let term = unlinked.remove(n);
        let (before, from) = rest.split_at(at);
        let (word, after) = from.split_at(length.0);
        out.push_str(before);
        let (id, line) = (term.id, term.line);
        out.push_str(&format!(
            r##"<a class="term" href="#term-{id}"><abbr title="{}">{word}</abbr></a>"##,
            line.replace('\'', "&#39;")
        ));
        rest = after;
    }
    out.push_str(rest);
}

/// Returns the position of a term's first occurrence as a whole word, and its length there.
fn first_of(text: &str, term: &Term) -> Option<(usize, usize)> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    // The start of an escape, such as `&amp;`.
    let is_escape = |c: char| matches!(c, '&' | '#');
    let is_same = |found: &str, spelt: &str| {
        let mut capital = spelt.chars();
        let first = capital.next().map(|c| c.to_ascii_uppercase());
        found == spelt || first.into_iter().chain(capital).eq(found.chars())
    };
    let found = term.spelt.iter().filter_map(|spelt| {
        let starts = text.char_indices().map(|(at, _)| at);
        let mut fitting = starts.filter(|at| {
            let found = text.get(*at..at + spelt.len());
            let before = text[..*at].chars().next_back();
            let after = text
                .get(at + spelt.len()..)
                .and_then(|rest| rest.chars().next());
            found.is_some_and(|found| is_same(found, spelt))
                && !before.is_some_and(|c| is_part(c) || is_escape(c))
                && !after.is_some_and(is_part)
        });
        fitting
            .next()
            .map(|at| (at, std::cmp::Reverse(spelt.len())))
    });
    found.min().map(|(at, length)| (at, length.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn link(term: &str, word: &str) -> String {
        let term = TERMS.iter().find(|of| of.id == term).unwrap();
        let line = term.line.replace('\'', "&#39;");
        format!(
            r##"<a class="term" href="#term-{}"><abbr title="{line}">{word}</abbr></a>"##,
            term.id
        )
    }

    #[track_caller]
    fn check(main: &str, expected: &str) {
        let page = |main: &str| format!("<p>cohort</p><main>{main}</main><p>window</p>");
        assert_eq!(linked(&page(main)), page(expected));
    }

    #[test]
    fn a_term_is_linked_where_it_first_stands() {
        let expected = format!("<p>The {} has a cohort.</p>", link("cohort", "cohort"));
        check("<p>The cohort has a cohort.</p>", &expected);
        let expected = format!("<th>{} within</th><td>0.1 CV</td>", link("cv", "CV"));
        check("<th>CV within</th><td>0.1 CV</td>", &expected);
        let expected = format!(
            "{}, {}",
            link("quantiles", "Median"),
            link("window", "Windows")
        );
        check("Median, Windows", &expected);
        let signal = "slower_with_placement_change";
        let expected = format!("<code>{}</code>", link("placement-change", signal));
        check(&format!("<code>{signal}</code>"), &expected);
        check(
            "slower_than_1.6x&#39;s chance",
            &format!(
                "{}&#39;s {}",
                link("slower-than", "slower_than_1.6x"),
                link("chance", "chance")
            ),
        );
    }

    #[test]
    fn names_links_headlines_drawings_and_parts_of_words_stay() {
        for main in [
            "<h1>cohort</h1>",
            "<td><bdi>CV</bdi></td>",
            "<a href=\"/x?cohort=1\">cohort <b>CV</b></a>",
            "<svg><desc>cohort</desc><text>dip</text></svg>",
            "<pre class=\"cmd\"><span>--dip</span></pre>",
            "<p title=\"dip\">dips CVs wind window_end --chance x_dip &dip;</p>",
            "",
        ] {
            check(main, main);
        }
        // After an element without links, terms are linked again.
        check(
            "<h1>dip</h1>dip",
            &format!("<h1>dip</h1>{}", link("dip", "dip")),
        );
        let sentence = |text: &str| format!("<td>{SENTENCE}{text}</bdi></td>");
        check(&sentence("dip"), &sentence(&link("dip", "dip")));
        assert_eq!(linked("no content"), "no content");
    }

    #[test]
    fn the_foot_has_the_terms_of_the_page_alone() {
        let lines: String = TERMS.iter().map(line_of).collect();
        let html = linked(&format!("<main>dip</main><dl>{lines}</dl>"));
        let (_, foot) = html.split_once("<dl>").unwrap();
        let dip = TERMS.iter().find(|term| term.id == "dip").unwrap();
        assert_eq!(foot, format!("{}</dl>", line_of(dip)));
    }

    #[test]
    fn each_term_has_a_place_a_line_and_a_spelling_of_its_own() {
        let ids: BTreeSet<_> = TERMS.iter().map(|term| term.id).collect();
        assert_eq!(ids.len(), TERMS.len());
        let spelt: Vec<_> = TERMS.iter().flat_map(|term| term.spelt).collect();
        assert_eq!(spelt.iter().collect::<BTreeSet<_>>().len(), spelt.len());
        for term in &TERMS {
            for spelt in term.spelt {
                let html = linked(&format!("<main>{spelt}</main>"));
                assert!(html.contains(&link(term.id, spelt)), "{html}");
            }
            assert!(!term.line.contains(['"', '<', '>']), "{}", term.line);
        }
    }
}
