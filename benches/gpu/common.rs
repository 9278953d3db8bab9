//! What programs that measure on a GPU have in common: the median, and how they end. It does not know what they measure.

use millpond::cuda::Cuda;
use std::error::Error;
use std::process::ExitCode;

/// The middle one, or the upper of the middle two; NaN of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() { f64::NAN } else { sorted[sorted.len() / 2] }
}

/// Runs on device 0 what says whether every aim was met: ends with 0 then, with 3 if one was missed, with 2 without a GPU, with 1 if something failed.
pub(crate) fn on_the_gpu(run: impl FnOnce(&Cuda) -> Result<bool, Box<dyn Error>>) -> ExitCode {
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    match run(&cuda) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
