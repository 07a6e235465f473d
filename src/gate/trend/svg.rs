//! The chart of a trend: a panel for each number, a line for each model and chipset.

use std::fmt::Write as _;

use super::series::{Point, Series};

/// Beginning of a chart.
pub(super) const BEGINS: &str = "<!-- epwatch gate trend -->";

const WIDTH: f64 = 960.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 54.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 24.0;
const LEGEND_LINE: f64 = 18.0;
/// Maximum number of lines of a chart; the table has all series.
const MOST_LINES: usize = 8;
/// Maximum number of chipsets that the legend names for a line.
const SHOWN_NAMES: usize = 4;
/// Colours that people with colour blindness tell apart (Okabe and Ito).
const COLOURS: [&str; MOST_LINES] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8a7a00",
];

/// A panel of the chart, which shows one number of each point.
struct Panel {
    title: &'static str,
    value: fn(&Point) -> Option<f64>,
    /// Largest value of the axis; `None` leaves 10 % above the largest of the points.
    top: Option<f64>,
    shown: fn(f64) -> String,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a chart shows some hundred steps"
)]
const PANELS: [Panel; 5] = [
    Panel {
        title: "MACs on the NPU",
        value: |point| Some(100.0 * point.npu_macs?),
        top: Some(100.0),
        shown: |value| format!("{value:.0} %"),
    },
    Panel {
        title: "Partitions on the NPU",
        value: |point| Some(point.partitions? as f64),
        top: None,
        shown: |value| format!("{value:.0}"),
    },
    Panel {
        title: "Nodes that compute on the CPU",
        value: |point| Some(point.cpu_nodes? as f64),
        top: None,
        shown: |value| format!("{value:.0}"),
    },
    Panel {
        title: "Bytes between NPU and CPU in a run",
        value: |point| Some(point.crossing_bytes? as f64),
        top: None,
        shown: bytes,
    },
    Panel {
        title: "Median of the launches",
        value: |point| point.median_ms,
        top: None,
        shown: |value| format!("{value:.1} ms"),
    },
];

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1} MB", value / 1e6),
        value if value >= 1e3 => format!("{:.0} kB", value / 1e3),
        value => format!("{value:.0} B"),
    }
}

/// Series that have the same numbers at the same times.
struct Line<'a> {
    names: Vec<String>,
    points: &'a [Point],
}

/// Returns the chart as an SVG document.
pub(super) fn chart(series: &[Series]) -> String {
    let mut lines = lines(series);
    let n_left_out = lines.len().saturating_sub(MOST_LINES);
    lines.truncate(MOST_LINES);
    let has = |panel: &&Panel| {
        let mut points = lines.iter().flat_map(|line| line.points);
        points.any(|point| (panel.value)(point).is_some())
    };
    let panels: Vec<&Panel> = PANELS.iter().filter(has).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few lines")]
    let legend = LEGEND_LINE * (lines.len() + usize::from(n_left_out > 0)) as f64;
    let top = 24.0 + legend + 24.0;
    #[expect(clippy::cast_precision_loss, reason = "five panels at most")]
    let height = top + panels.len() as f64 * (PANEL + GAP) + 12.0;
    let mut out = format!(
        r##"{BEGINS}
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" font-family="sans-serif" font-size="12" fill="#222">
<title>epwatch gate: results over time</title>
<rect width="{WIDTH:.0}" height="{height:.0}" fill="#fff"/>
"##
    );
    for (at, line) in lines.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "eight lines at most")]
        let y = 24.0 + LEGEND_LINE * at as f64;
        _ = writeln!(
            out,
            r#"<rect x="{LEFT}" y="{:.0}" width="14" height="4" fill="{}"/><text x="{:.0}" y="{y:.0}">{}</text>"#,
            y - 6.0,
            COLOURS[at],
            LEFT + 22.0,
            escaped(&line.name())
        );
    }
    if n_left_out > 0 {
        _ = writeln!(
            out,
            r##"<text x="{:.0}" y="{:.0}" fill="#666">{n_left_out} more lines are in the table</text>"##,
            LEFT + 22.0,
            24.0 + legend - LEGEND_LINE
        );
    }
    let times = Times::of(&lines);
    for (at, panel) in panels.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "five panels at most")]
        let y = top + at as f64 * (PANEL + GAP);
        draw(&mut out, panel, &lines, &times, y);
    }
    out.push_str("</svg>\n");
    out
}

/// Series with equal numbers share a line; lines that change come first.
fn lines(series: &[Series]) -> Vec<Line<'_>> {
    let mut models = series.iter().map(|series| &series.model);
    let first = models.next();
    let is_one = models.all(|model| Some(model) == first);
    let numbers = |points: &[Point]| -> Vec<_> {
        let each = points.iter();
        let each = each.map(|point| {
            (
                point.made_at,
                PANELS.map(|panel| (panel.value)(point)),
                point.result == "fail",
            )
        });
        each.collect()
    };
    let mut lines: Vec<Line<'_>> = Vec::new();
    for one in series {
        let name = match &one.model {
            Some(model) if !is_one => format!("{} {model}", one.chipset),
            _ => one.chipset.clone(),
        };
        match lines
            .iter_mut()
            .find(|line| numbers(line.points) == numbers(&one.points))
        {
            Some(line) => line.names.push(name),
            None => lines.push(Line {
                names: vec![name],
                points: &one.points,
            }),
        }
    }
    let is_flat = |line: &Line<'_>| {
        let mut each = line.points.iter();
        let first = each
            .next()
            .map(|point| PANELS.map(|panel| (panel.value)(point)));
        each.all(|point| Some(PANELS.map(|panel| (panel.value)(point))) == first)
    };
    lines.sort_by_key(is_flat);
    lines
}

impl Line<'_> {
    fn name(&self) -> String {
        let shown: Vec<&str> = self
            .names
            .iter()
            .take(SHOWN_NAMES)
            .map(String::as_str)
            .collect();
        let more = match self.names.len().checked_sub(SHOWN_NAMES) {
            Some(more @ 1..) => format!(" and {more} more"),
            _ => String::new(),
        };
        format!("{}{more}", shown.join(", "))
    }
}

/// The axis of time.
struct Times {
    first: i64,
    last: i64,
}

impl Times {
    fn of(lines: &[Line<'_>]) -> Self {
        let points = lines.iter().flat_map(|line| line.points);
        let seconds: Vec<i64> = points.map(|point| point.made_at.as_second()).collect();
        Self {
            first: seconds.iter().copied().min().unwrap_or(0),
            last: seconds.iter().copied().max().unwrap_or(0),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of some years")]
    fn x(&self, point: &Point) -> f64 {
        let width = WIDTH - LEFT - RIGHT;
        let all = (self.last - self.first) as f64;
        let share = match all {
            0.0 => 0.5,
            all => (point.made_at.as_second() - self.first) as f64 / all,
        };
        LEFT + width * share
    }

    /// Returns the date at a share of the axis.
    fn label(&self, share: f64) -> String {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "seconds of some years"
        )]
        let second = self.first + ((self.last - self.first) as f64 * share) as i64;
        let time = jiff::Timestamp::from_second(second);
        let format = match self.last - self.first {
            0..172_800 => "%m-%d %H:%M",
            _ => "%Y-%m-%d",
        };
        time.map_or_else(|_| String::new(), |time| time.strftime(format).to_string())
    }
}

fn draw(out: &mut String, panel: &Panel, lines: &[Line<'_>], times: &Times, top: f64) {
    let points = lines.iter().flat_map(|line| line.points);
    let largest = points.filter_map(panel.value).fold(0.0_f64, f64::max);
    // A series of zeros still needs an axis with a height.
    let most = panel
        .top
        .unwrap_or(if largest > 0.0 { largest * 1.1 } else { 1.0 });
    let y = |value: f64| top + PANEL - PANEL * (value / most).clamp(0.0, 1.0);
    let right = WIDTH - RIGHT;
    _ = writeln!(
        out,
        r#"<text x="{LEFT}" y="{:.0}" font-weight="bold">{}</text>"#,
        top - 8.0,
        panel.title
    );
    let marks = match (panel.top, largest > 0.0) {
        (Some(top), _) => vec![0.0, top / 2.0, top],
        (None, true) => vec![0.0, largest],
        (None, false) => vec![0.0],
    };
    for mark in marks {
        let at = y(mark);
        _ = writeln!(
            out,
            r##"<line x1="{LEFT}" x2="{right}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/><text x="{:.0}" y="{:.1}" text-anchor="end" fill="#555">{}</text>"##,
            LEFT - 8.0,
            at + 4.0,
            (panel.shown)(mark)
        );
    }
    let shares: &[(f64, &str)] = match times.first == times.last {
        true => &[(0.5, "middle")],
        false => &[(0.0, "start"), (0.5, "middle"), (1.0, "end")],
    };
    for (share, anchor) in shares {
        _ = writeln!(
            out,
            r##"<text x="{:.1}" y="{:.0}" text-anchor="{anchor}" fill="#555">{}</text>"##,
            LEFT + (right - LEFT) * share,
            top + PANEL + 18.0,
            times.label(*share)
        );
    }
    // Lines that change come first, and are drawn over the others.
    for (line, colour) in lines.iter().zip(COLOURS).rev() {
        // The line has a gap where a session was not made, because it has no number.
        let mut path = String::new();
        let mut is_down = false;
        for point in line.points {
            let Some(value) = (panel.value)(point) else {
                is_down = false;
                continue;
            };
            let step = if is_down { 'L' } else { 'M' };
            _ = write!(path, "{step}{:.1} {:.1}", times.x(point), y(value));
            is_down = true;
        }
        _ = writeln!(
            out,
            r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>"#
        );
        for point in line.points {
            let Some(value) = (panel.value)(point) else {
                continue;
            };
            // A failed result is drawn as a ring, so that it is visible without colours.
            let (fill, radius) = match point.result.as_str() {
                "fail" => ("#fff", 5),
                _ => (colour, 3),
            };
            _ = writeln!(
                out,
                r#"<circle cx="{:.1}" cy="{:.1}" r="{radius}" fill="{fill}" stroke="{colour}" stroke-width="2"><title>{}: {} {}, {}</title></circle>"#,
                times.x(point),
                y(value),
                escaped(&line.name()),
                point.made_at.strftime("%Y-%m-%d %H:%M"),
                (panel.shown)(value),
                escaped(&point.result)
            );
        }
    }
}

/// Names come from a stranger's document.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in epwatch_proto::visible(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0 does not allow these characters.
            '\u{0}'..='\u{8}'
            | '\u{b}'
            | '\u{c}'
            | '\u{e}'..='\u{1f}'
            | '\u{fffe}'
            | '\u{ffff}' => {}
            c => out.push(c),
        }
    }
    out
}
