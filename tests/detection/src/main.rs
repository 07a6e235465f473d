//! Runs the detector over labelled fleets, through the code of `epwatch replay`, and says how often it
//! is right: false pages of each confounder, recall of each fault, and how hard the fleets are.
//!
//! `epwatch-proof [FIRST_SEED] [FAMILIES_PER_STORY] [--write FILE] [--only NAME] [--verbose]`

mod hardness;
mod judged;
mod stories;
mod table;

use std::io::Write;

use anyhow::Context;

/// 2026-01-01.
const START_MS: i64 = 1_767_225_600_000;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut numbers, mut file, mut only, mut verbose) = (Vec::new(), None, None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--write" => file = Some(args.next().context("--write needs a file")?),
            "--only" => only = Some(args.next().context("--only needs a name")?),
            "--verbose" => verbose = true,
            number => numbers.push(number.parse::<u64>().context("a number was expected")?),
        }
    }
    let first_seed = numbers.first().copied().unwrap_or(500_000);
    let families = numbers.get(1).copied().unwrap_or(20);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut report = format!(
        "# Detection, measured\n\nWritten by `just detection` on simulated fleets (`tests/fleet`, seeds from \
         {first_seed}, {families} families a story) through the code of `epwatch replay`. No field data \
         exists yet.\n\n## How hard the fleets are\n\n"
    );
    if only.is_none() {
        report += &hardness::measured(first_seed, families.max(20)).to_string();
    }
    let mut results = Vec::new();
    for (number, story) in stories::all().into_iter().enumerate() {
        if only
            .as_ref()
            .is_some_and(|only| !story.name.contains(only.as_str()))
        {
            continue;
        }
        let seed = first_seed + 10_000 * number as u64;
        let specs = story.families(seed, families);
        let result = runtime.block_on(judged::judge(&story, &specs, verbose))?;
        writeln!(std::io::stderr(), "{}", result.line())?;
        results.push(result);
    }
    report += "## Figures\n\n";
    report += &table::written(&results);
    match file {
        Some(path) => std::fs::write(&path, report).with_context(|| format!("writing {path}"))?,
        None => write!(std::io::stdout(), "{report}")?,
    }
    Ok(())
}
