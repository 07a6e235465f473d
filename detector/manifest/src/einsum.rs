//! Shapes and MACs of an Einsum, from its equation and the shapes of its operands. Called while shapes are followed and
//! MACs are counted; an invalid equation gives `None`, never a panic.

use crate::tensor::{MOST_DIMS, product};

/// Labels from here on are dimensions of an ellipsis, counted from the last one.
const ELLIPSIS: u8 = 128;

/// An equation for operands of given shapes, with each ellipsis replaced by labels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Equation {
    operands: Vec<Vec<u8>>,
    result: Vec<u8>,
    /// Size of each label. If it is 1 in one operand and larger in another, the larger size counts.
    sizes: Vec<(u8, u64)>,
}

impl Equation {
    pub(crate) fn of(text: &str, shapes: &[&[u64]]) -> Option<Self> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let each: Vec<&str> = left.split(',').collect();
        if each.len() != shapes.len() {
            return None;
        }
        let (mut operands, mut sizes) = (Vec::new(), Vec::<(u8, u64)>::new());
        let mut longest = 0;
        for (operand, dims) in each.iter().zip(shapes) {
            let letters = operand.replace("...", "").len();
            let hidden = dims.len().checked_sub(letters)?;
            let labels = labels(operand, hidden)?;
            longest = longest.max(labels.len() - letters);
            if labels.len() != dims.len() {
                return None;
            }
            for (label, dim) in labels.iter().zip(*dims) {
                match sizes.iter_mut().find(|(known, _)| known == label) {
                    Some((_, size)) => *size = (*size).max(*dim),
                    None => sizes.push((*label, *dim)),
                }
            }
            operands.push(labels);
        }
        let result = match right {
            Some(right) => labels(right, longest)?,
            None => implicit(&operands, longest),
        };
        Some(Self {
            operands,
            result,
            sizes,
        })
    }

    /// Shape of the result.
    pub(crate) fn dims(&self) -> Option<Vec<u64>> {
        self.result.iter().map(|label| self.size(*label)).collect()
    }

    /// MACs of the products, operand by operand from the left, as ONNX Runtime computes them. Labels that occur nowhere
    /// else are summed first. `None` beyond 64 bits.
    pub(crate) fn macs(&self) -> Option<u64> {
        let mut all = 0_u64;
        let (first, rest) = self.operands.split_first()?;
        let mut left = first.clone();
        for (at, operand) in rest.iter().enumerate() {
            let later = || rest[at + 1..].iter().flatten().chain(&self.result);
            let is_later = |label: &u8| later().any(|other| other == label);
            let mut product_of = Vec::new();
            for label in left.iter().chain(operand) {
                let is_shared = left.contains(label) && operand.contains(label);
                if (is_shared || is_later(label)) && !product_of.contains(label) {
                    product_of.push(*label);
                }
            }
            let sizes: Option<Vec<u64>> = product_of.iter().map(|l| self.size(*l)).collect();
            all = all.checked_add(product(&sizes?)?)?;
            product_of.retain(is_later);
            left = product_of;
        }
        Some(all)
    }

    fn size(&self, label: u8) -> Option<u64> {
        let found = self.sizes.iter().find(|(known, _)| *known == label);
        found.map(|(_, size)| *size)
    }
}

/// Returns the labels of a term; its ellipsis stands for `hidden` dimensions.
fn labels(term: &str, hidden: usize) -> Option<Vec<u8>> {
    let letters = |text: &str| text.bytes().all(|b| b.is_ascii_alphabetic());
    if hidden > MOST_DIMS {
        return None;
    }
    let Some((before, after)) = term.split_once("...") else {
        return letters(term).then(|| term.as_bytes().to_vec());
    };
    (letters(before) && letters(after)).then(|| {
        let hidden = (0..hidden).rev().filter_map(|at| u8::try_from(at).ok());
        let hidden = hidden.map(|at| ELLIPSIS + at);
        before.bytes().chain(hidden).chain(after.bytes()).collect()
    })
}

/// The result of an equation without an arrow: the ellipsis, then each letter that occurs once, in alphabetical order.
fn implicit(operands: &[Vec<u8>], longest: usize) -> Vec<u8> {
    let mut once: Vec<u8> = Vec::new();
    let count = |label: u8| operands.iter().flatten().filter(|l| **l == label).count();
    for label in operands.iter().flatten().filter(|label| **label < ELLIPSIS) {
        if count(*label) == 1 {
            once.push(*label);
        }
    }
    once.sort_unstable();
    let hidden = (0..longest).rev().filter_map(|at| u8::try_from(at).ok());
    hidden.map(|at| ELLIPSIS + at).chain(once).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shapes: &[&[u64]], dims: &[u64], macs: u64) {
        let found = Equation::of(text, shapes).unwrap();
        assert_eq!(found.dims().as_deref(), Some(dims), "{text}");
        assert_eq!(found.macs(), Some(macs), "{text}");
    }

    /// A convolution over unfolded patches has the MACs of the Conv: output elements times channels times kernel.
    #[test]
    fn a_convolution_counts_as_a_conv() {
        let (n, channels, out, height, width, kernel) = (2, 3, 8, 10, 12, 5);
        let patches: &[u64] = &[n, channels, height, width, kernel, kernel];
        let weight: &[u64] = &[out, channels, kernel, kernel];
        let macs = n * out * height * width * channels * kernel * kernel;
        let dims = [n, out, height, width];
        check("nchwij,ocij->nohw", &[patches, weight], &dims, macs);
        // In a depthwise convolution each channel has its own kernel.
        let macs = n * channels * height * width * kernel * kernel;
        let dims = [n, channels, height, width];
        let weight: &[u64] = &[channels, kernel, kernel];
        check("nchwij,cij->nchw", &[patches, weight], &dims, macs);
        // After im2col.
        let columns: &[u64] = &[n, channels * kernel * kernel, height * width];
        let weight: &[u64] = &[out, channels * kernel * kernel];
        let macs = n * out * height * width * channels * kernel * kernel;
        let dims = [n, out, height * width];
        check("ok,nkl->nol", &[weight, columns], &dims, macs);
    }

    #[test]
    fn ellipses_and_missing_arrows_are_followed() {
        check(
            "...ij,jk->...ik",
            &[&[2, 4, 5, 6], &[6, 7]],
            &[2, 4, 5, 7],
            2 * 4 * 5 * 6 * 7,
        );
        check(
            "...ij,...jk",
            &[&[1, 5, 6], &[3, 6, 7]],
            &[3, 5, 7],
            3 * 5 * 6 * 7,
        );
        check("ij,jk", &[&[5, 6], &[6, 7]], &[5, 7], 5 * 6 * 7);
        check("ab,ab", &[&[5, 6], &[5, 6]], &[], 30);
    }

    #[test]
    fn products_are_counted_pair_by_pair_and_sums_are_none() {
        check("ii->i", &[&[5, 5]], &[5], 0);
        check("bij->bji", &[&[2, 3, 4]], &[2, 4, 3], 0);
        check(
            "bi,ij,bj->b",
            &[&[2, 3], &[3, 4], &[2, 4]],
            &[2],
            2 * 3 * 4 + 2 * 4,
        );
        // b and i are summed first.
        check("bij,jk->k", &[&[2, 3, 4], &[4, 5]], &[5], 4 * 5);
        check("i,j->ij", &[&[3], &[4]], &[3, 4], 12);
    }

    #[test]
    fn equations_that_do_not_fit_are_none() {
        for (text, shapes) in [
            ("ij,jk->ik", &[&[5, 6][..]][..]),
            ("ij->ij", &[&[5, 6, 7]]),
            ("ij->ik", &[&[5, 6]]),
            ("i1->i", &[&[5, 6]]),
            ("....ij->ij", &[&[5, 6]]),
            ("", &[&[5]]),
        ] {
            let found = Equation::of(text, shapes);
            assert!(found.is_none_or(|found| found.dims().is_none()), "{text}");
        }
    }
}
