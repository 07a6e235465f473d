//! Launches of an earlier call: which of them count, and why others are refused. They would be judged together with this
//! call's launches.

use std::path::Path;

use epwatch_gate::run::Arm;

use crate::{
    change::changed,
    document::{self, RunDocument},
    inputs::InputKind,
    job::{AFFINITY, Ep, Job},
    settings::{AFFINITY_FILE, BACKEND, CUSTOM_OPS, INPUTS, ORT, PROVIDER, difference},
};

/// The launch of an earlier call; `None` if there is none.
///
/// # Errors
/// The file is of another model or other options. The text names it without its folder.
pub(crate) fn known(job: &Job) -> Result<Option<RunDocument>, String> {
    if !job.out.is_file() {
        return Ok(None);
    }
    let shown = job.out.file_name().unwrap_or_default().to_string_lossy();
    let document = document::read(&job.out)
        .map_err(|error| format!("{shown} is not a launch of this program: {error}"))?;
    match differs(&document, job) {
        Some(what) => Err(format!("{shown} was made by another command: {what}")),
        None => Ok(Some(document)),
    }
}

/// What differs first, in words; `None` if nothing does.
fn differs(kept: &RunDocument, job: &Job) -> Option<String> {
    if kept.model.sha256.as_ref() != Some(&job.sha256) {
        return Some("it is of another model".to_owned());
    }
    if let Some(file) = difference(&kept.model.data, &job.data) {
        return Some(format!("the model's data: {file} is another file now"));
    }
    if kept.runtime.ep.as_deref() != Some(job.ep.name()) {
        let (was, is) = (kept.runtime.ep.as_ref(), job.ep.name().to_owned());
        return Some(changed("EP", was, Some(&is)));
    }
    let target = document::difference(&kept.target, &job.target);
    let target = target.or_else(|| {
        let (was, is) = (&kept.runtime.options, &job.options());
        let name = difference(was, is)?;
        Some(changed(name, was.get(name), is.get(name)))
    });
    target.or_else(|| {
        let name = difference(&kept.settings, &job.settings)?;
        Some(setting_differs(name, kept, job))
    })
}

/// A setting that differs, in words. Settings name files by their hash, which says nothing to a person.
fn setting_differs(name: &str, kept: &RunDocument, job: &Job) -> String {
    let (was, is) = (kept.settings.get(name), job.settings.get(name));
    let version = kept.runtime.ort.as_deref().filter(|_| name == ORT);
    let version = version.map_or(String::new(), |version| format!("{version} before, "));
    match file_of(name, job) {
        Some(file) if was.is_some() => {
            format!("{name}: {version}another file now, {}", file.display())
        }
        None if name == CUSTOM_OPS && was.is_some() && is.is_some() => {
            format!("{name}: the files are other ones than before")
        }
        _ => changed(name, was, is),
    }
}

/// The file or folder of a setting; `None` of other settings.
fn file_of<'a>(name: &str, job: &'a Job) -> Option<&'a Path> {
    match (name, &job.ep, &job.inputs) {
        (ORT, ..) => Some(&job.ort),
        (PROVIDER, Ep::Qnn { provider, .. }, _) => Some(provider),
        (BACKEND, Ep::Qnn { backend, .. }, _) => Some(backend),
        (AFFINITY_FILE, Ep::Qnn { options, .. }, _) => {
            let affinity = options.iter().find(|option| option.key == AFFINITY)?;
            Some(Path::new(&affinity.value))
        }
        (INPUTS, _, InputKind::Folder(folder)) => Some(folder),
        _ => None,
    }
}

/// The first launch that is missing although a later one is there, with that later one. Launches that are made now would
/// not take turns with those.
pub(crate) fn out_of_turn(
    order: &[(Arm, u32)],
    is_there: impl Fn(Arm, u32) -> bool,
) -> Option<[(Arm, u32); 2]> {
    let mut left = order.iter().skip_while(|(arm, n)| is_there(*arm, *n));
    let missing = left.next()?;
    let later = left.find(|(arm, n)| is_there(*arm, *n))?;
    Some([*missing, *later])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::order;

    #[test]
    fn launches_of_one_model_alone_are_out_of_turn() {
        let kept =
            |there: &[(Arm, u32)]| out_of_turn(&order(3, true), |arm, n| there.contains(&(arm, n)));
        let (a, b) = (Arm::Candidate, Arm::Baseline);
        assert_eq!(kept(&[]), None);
        // A call that was interrupted, whenever that was.
        assert_eq!(kept(&[(a, 1)]), None);
        assert_eq!(kept(&[(a, 1), (b, 1), (b, 2)]), None);
        assert_eq!(
            kept(&[(a, 1), (b, 1), (b, 2), (a, 2), (a, 3), (b, 3)]),
            None
        );
        assert_eq!(kept(&[(a, 1), (a, 2)]), Some([(b, 1), (a, 2)]));
    }
}
