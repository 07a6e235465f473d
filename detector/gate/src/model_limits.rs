//! `[model."PATTERN".placement]` of a policy: limits of single models, where one gate judges several.

use crate::policy::Policy;

/// Two patterns of a policy name one model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("[model.\"{first}\"] and [model.\"{second}\"] both name {path}; expected one")]
pub struct TwoPatterns {
    first: String,
    second: String,
    path: String,
}

impl Policy {
    /// The patterns of [`Policy::model`] that name this model.
    pub fn patterns_of(&self, path: &str) -> impl Iterator<Item = &str> {
        let patterns = self.model.keys().map(String::as_str);
        patterns.filter(move |pattern| names(pattern, path))
    }

    /// Returns the policy of one model. A key of its pattern replaces that key of `placement` and of each chipset.
    ///
    /// # Errors
    /// Two patterns name the model.
    pub fn for_model(&self, path: &str) -> Result<Self, TwoPatterns> {
        let mut found = self.patterns_of(path);
        let first = found.next();
        if let (Some(first), Some(second)) = (first, found.next()) {
            return Err(TwoPatterns {
                first: first.to_owned(),
                second: second.to_owned(),
                path: path.to_owned(),
            });
        }
        let mut policy = self.clone();
        policy.model.clear();
        let Some(own) = first.and_then(|pattern| self.model.get(pattern)) else {
            return Ok(policy);
        };
        policy.placement = own.placement.or(&policy.placement);
        for limits in policy.chipset.values_mut() {
            limits.placement = own.placement.or(&limits.placement);
        }
        Ok(policy)
    }
}

/// Whether a path ends with the parts of a pattern. There `*` stands for any characters of a part, and `?` for one.
fn names(pattern: &str, path: &str) -> bool {
    let parts = |text: &str| -> Vec<Vec<char>> {
        let parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
        parts.map(|part| part.chars().collect()).collect()
    };
    let (pattern, path) = (parts(pattern), parts(path));
    let mut both = pattern.iter().rev().zip(path.iter().rev());
    !pattern.is_empty()
        && pattern.len() <= path.len()
        && both.all(|(pattern, part)| is_like(pattern, part))
}

/// Matches one part of a path. After a mismatch, the last `*` takes one more character.
fn is_like(pattern: &[char], part: &[char]) -> bool {
    let (mut at, mut in_pattern) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while at < part.len() {
        match pattern.get(in_pattern) {
            Some('*') => {
                last_star = Some((in_pattern, at));
                in_pattern += 1;
            }
            Some(c) if *c == '?' || *c == part[at] => {
                at += 1;
                in_pattern += 1;
            }
            _ => {
                let Some((star, taken)) = last_star else {
                    return false;
                };
                last_star = Some((star, taken + 1));
                (at, in_pattern) = (taken + 1, star + 1);
            }
        }
    }
    pattern[in_pattern..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_the_end_of_a_path() {
        for (pattern, path, is_named) in [
            ("detect.onnx", "detect.onnx", true),
            ("detect.onnx", "./models/detect.onnx", true),
            ("detect*.onnx", "models/detect_v2.int8.onnx", true),
            ("*.int8.onnx", "models/detect_v2.int8.onnx", true),
            ("models/*", "a/models/b.onnx", true),
            ("./models/*", "models/b.onnx", true),
            ("pose/?.onnx", "pose/a.onnx", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*", "anything.onnx", true),
            ("detect.onnx", "mydetect.onnx", false),
            ("models/*", "models/deep/b.onnx", false),
            ("a/b.onnx", "b.onnx", false),
            ("pose/?.onnx", "pose/ab.onnx", false),
            ("*a*b", "xxaxxbxx", false),
            ("", "a.onnx", false),
            ("/", "a.onnx", false),
        ] {
            assert_eq!(names(pattern, path), is_named, "{pattern} {path}");
        }
    }

    #[test]
    fn a_models_keys_replace_those_of_all_and_of_a_chipset() {
        let policy = Policy::parse(
            "[placement]\nmin_npu_macs = 0.9\nmax_partitions = 1\n\
             [chipset.SM8635.placement]\nmax_partitions = 2\nallowed_cpu_ops = ['TopK']\n\
             [model.'detect*.onnx'.placement]\nmax_partitions = 3\n\
             [model.'pose.onnx'.placement]\nmin_npu_macs = 0.5\n",
        )
        .unwrap();
        let detect = policy.for_model("m/detect_2.onnx").unwrap();
        for (chipset, most) in [("SM8650", Some(3)), ("SM8635", Some(3))] {
            let on = detect.placement_on(chipset);
            assert_eq!((on.max_partitions, on.min_npu_macs), (most, Some(0.9)));
        }
        assert!(detect.placement_on("SM8635").allowed_cpu_ops.is_some());
        let pose = policy
            .for_model("pose.onnx")
            .unwrap()
            .placement_on("SM8635");
        assert_eq!(
            (pose.max_partitions, pose.min_npu_macs),
            (Some(2), Some(0.5))
        );
        let other = policy.for_model("other.onnx").unwrap();
        assert_eq!(other.placement, policy.placement);
        let two = Policy::parse("[model.'*.onnx'.placement]\n[model.'a*'.placement]\n").unwrap();
        let error = two.for_model("x/a.onnx").unwrap_err().to_string();
        assert!(error.contains("both name x/a.onnx"), "{error}");
        two.for_model("b.onnx").unwrap();
    }

    #[test]
    fn a_section_is_checked_as_the_others() {
        for (text, words) in [
            ("[model.'a.onnx']\nmax_partitions = 1", "max_partitions"),
            (
                "[model.'a.onnx'.placement]\nmin_npu_macs = 98",
                "model.\"a.onnx\".placement.min_npu_macs",
            ),
            ("[model.'a.onnx'.placement]\nmin_macs = 1", "min_macs"),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
