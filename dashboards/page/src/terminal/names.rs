//! Errors for names in a command that were not judged in the last day, with the nearest name that was.

use strsim::damerau_levenshtein;

use super::error::TerminalError;
use super::question::TerminalPage;
use crate::read::fleet::{FleetPage, FleetQuery};
use crate::read::progress::Progress;
use crate::read::scope::AppScope;
use crate::server::answer::{Missing, Page, Pages, Target};

/// Returns the error for the first name of the question that does not exist; `found` is the fleet page, if the question
/// is about it. Before the first judgement it returns `None`, because any name may still appear.
pub(super) async fn unknown(
    pages: &Pages,
    progress: Progress,
    question: &TerminalPage,
    found: Option<&FleetPage>,
) -> Result<Option<TerminalError>, Missing> {
    if progress.judged_until.is_none() {
        return Ok(None);
    }
    let (app, environment, model, chipset) = match question {
        TerminalPage::Fleet {
            app: Some(app),
            environment,
            search,
        } => (app, environment.as_deref(), search.as_str(), None),
        TerminalPage::Cohort {
            app,
            environment,
            model,
            chipset,
            ..
        } => (app, Some(&**environment), model.as_str(), Some(chipset)),
        _ => return Ok(None),
    };
    let is_found = found.is_some_and(|page| {
        page.choices.iter().any(|choice| choice.app == *app)
            && (model.is_empty() || !page.models.is_empty())
    });
    if is_found {
        return Ok(None);
    }
    let all = Target::Fleet(FleetQuery {
        app: Some(app.clone()),
        environment: environment.map(str::to_owned),
        ..FleetQuery::default()
    });
    let read = pages.read(&all, progress, &AppScope::all()).await?.page;
    let Page::Fleet(all) = &read.page else {
        return Ok(None);
    };
    let apps = all.choices.iter().map(|choice| &*choice.app);
    if !apps.clone().any(|known| known == app) {
        return Ok(Some(no_such("app", app, apps)));
    }
    let models = all.models.iter().map(|group| &*group.model);
    let Some(group) = all.models.iter().find(|group| group.model == *model) else {
        return Ok(Some(no_such("model", model, models)));
    };
    let chipsets: Vec<&str> = group.all_rows().map(|row| &*row.cohort.chipset).collect();
    Ok(chipset
        .filter(|asked| !chipsets.contains(&asked.as_str()))
        .map(|asked| no_such("chipset", asked, chipsets.into_iter())))
}

/// Returns the error for a name that does not exist, with the nearest existing name.
pub(crate) fn no_such<'a>(
    what: &'static str,
    asked: &str,
    known: impl Iterator<Item = &'a str>,
) -> TerminalError {
    TerminalError::NoSuch {
        what,
        asked: asked.to_owned(),
        hint: nearest(asked, known).map_or_else(
            || "`epwatch status` lists names".to_owned(),
            |near| format!("did you mean {near}?"),
        ),
    }
}

/// Returns the most similar known name, if at most half of its letters differ.
fn nearest<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| damerau_levenshtein(&asked.to_lowercase(), &known.to_lowercase());
    let (distance, near) = known.map(|known| (distance(known), known)).min()?;
    (distance * 2 <= asked.chars().count()).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_if_it_is_near() {
        let known = ["segmenter", "detector", "SM8635"];
        let near = |asked| nearest(asked, known.into_iter());
        assert_eq!(near("segmentor"), Some("segmenter"));
        assert_eq!(near("sm8653"), Some("SM8635"));
        assert_eq!(near("nosuch"), None);
        assert_eq!(nearest("x", [].into_iter()), None);
    }
}
