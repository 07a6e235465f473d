//! Splits a cohort's variance into the parts within its devices and between them.
//!
//! The law of total variance: Var(X) = E[Var(X | device)] + Var(E[X | device]). "All runs slow on 30 % of devices" and
//! "30 % of runs slow on all devices" have the same pooled CV. The first lies between devices, the second within them.

use crate::Moments;

/// The weight of each device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// Every device has the same weight, however often it ran. A cohort's CVs are reported with this weighting.
    Devices,
    /// Every run has the same weight, so the parts add up to the variance of the merged histogram.
    Runs,
}

/// A cohort's variance in two parts, in squared units of the values (latency: us^2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VarianceSplit {
    /// Devices with at least one run.
    pub n_devices: u64,
    /// Weighted mean over devices, in the unit of the values.
    pub mean: f64,
    /// E[Var(X | device)], the weighted mean of the devices' own (population) variances.
    pub within: f64,
    /// Var(E[X | device]), the weighted variance of the devices' means. A mean of n runs contains within / n of chance
    /// variance, so a device should have about 20 runs.
    pub between: f64,
    repeated: bool,
}

impl VarianceSplit {
    /// Splits the variance over devices, one [`Moments`] each; devices without runs are skipped.
    ///
    /// `None` if no device has a run.
    pub fn over_devices(devices: &[Moments], weighting: Weighting) -> Option<Self> {
        let weight = |device: &Moments| match weighting {
            Weighting::Devices => 1.0,
            Weighting::Runs => device.n() as f64,
        };
        let rows = devices.iter().filter_map(|device| {
            Some((
                weight(device),
                device.mean()?,
                device.population_variance()?,
            ))
        });

        // West 1979: weighted mean and sum of squared deviations in one pass, without cancellation.
        let (mut n_devices, mut total, mut mean, mut squares, mut within) = (0, 0.0, 0.0, 0.0, 0.0);
        for (weight, device_mean, variance) in rows {
            n_devices += 1;
            total += weight;
            let delta = device_mean - mean;
            mean += delta * weight / total;
            squares += weight * delta * (device_mean - mean);
            within += weight * variance;
        }
        (n_devices > 0).then(|| Self {
            n_devices,
            mean,
            within: within / total,
            between: squares / total,
            repeated: devices.iter().any(|device| device.n() > 1),
        })
    }

    /// Coefficient of variation within a device, sqrt(within) / mean, unitless.
    ///
    /// `None` if no device ran twice or the mean is not positive.
    pub fn cv_within(&self) -> Option<f64> {
        (self.repeated && self.mean > 0.0).then(|| self.within.sqrt() / self.mean)
    }

    /// Coefficient of variation of the devices' means, sqrt(between) / mean, unitless.
    ///
    /// `None` below two devices or if the mean is not positive.
    pub fn cv_between(&self) -> Option<f64> {
        (self.n_devices > 1 && self.mean > 0.0).then(|| self.between.sqrt() / self.mean)
    }

    /// Coefficient of variation of all runs, sqrt(within + between) / mean, unitless.
    ///
    /// `None` if neither part is known or the mean is not positive.
    pub fn cv_total(&self) -> Option<f64> {
        let told = self.repeated || self.n_devices > 1;
        (told && self.mean > 0.0).then(|| (self.within + self.between).sqrt() / self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(values: &[f64]) -> Moments {
        values.iter().copied().collect()
    }

    /// Both sets have the same merged runs, but they are divided differently between devices.
    #[test]
    fn slow_devices_and_slow_runs_differ_only_in_where_the_variance_lies() {
        let mixed = device(&[10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 30.0, 30.0, 30.0]);
        let slow_runs = vec![mixed; 10];
        let mut slow_devices = vec![device(&[10.0; 10]); 7];
        slow_devices.extend(vec![device(&[30.0; 10]); 3]);

        let runs = VarianceSplit::over_devices(&slow_runs, Weighting::Devices).unwrap();
        let devices = VarianceSplit::over_devices(&slow_devices, Weighting::Devices).unwrap();
        assert!((runs.cv_total().unwrap() - devices.cv_total().unwrap()).abs() < 1e-12);
        assert_eq!(runs.cv_between(), Some(0.0));
        assert_eq!(devices.cv_within(), Some(0.0));
        assert!((devices.cv_between().unwrap() - 84f64.sqrt() / 16.0).abs() < 1e-12);
    }

    #[test]
    fn a_whale_device_counts_once_by_devices_and_often_by_runs() {
        let fleet = [
            device(&[10.0; 1000]),
            device(&[20.0; 10]),
            device(&[20.0; 10]),
        ];
        let by = |weighting| VarianceSplit::over_devices(&fleet, weighting).unwrap().mean;
        assert!((by(Weighting::Devices) - 50.0 / 3.0).abs() < 1e-12);
        assert!((by(Weighting::Runs) - 10_400.0 / 1020.0).abs() < 1e-12);
    }

    #[test]
    fn says_nothing_about_what_one_device_or_one_run_cannot_tell() {
        assert_eq!(
            VarianceSplit::over_devices(&[Moments::default()], Weighting::Devices),
            None
        );
        let one = VarianceSplit::over_devices(&[device(&[1.0, 3.0])], Weighting::Devices).unwrap();
        assert_eq!((one.cv_within(), one.cv_between()), (Some(0.5), None));
        let single_runs = [device(&[1.0]), device(&[3.0])];
        let split = VarianceSplit::over_devices(&single_runs, Weighting::Devices).unwrap();
        assert_eq!((split.cv_within(), split.cv_between()), (None, Some(0.5)));
    }
}
