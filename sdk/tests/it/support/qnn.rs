//! Sessions on the HTP emulator.

use epwatch_engines::{Engine, Installed, for_tests};
use epwatch_sdk::{
    ModelInfo, SessionRequest, Watch,
    qnn::{HtpBuilder, HtpOptions, Plugin},
};

use super::environment;

pub(crate) fn installed() -> Installed {
    for_tests(Engine::OnnxRuntimeQnn)
}

/// Registers the plugin. A process may register it only once, so only child processes call this.
pub(crate) fn plugin() -> Plugin {
    Plugin::register(environment(), &installed().qnn_provider_library()).unwrap()
}

/// Options for the emulator of a chipset, given by QNN's number.
pub(crate) fn htp(soc_model: &str) -> HtpOptions {
    HtpOptions::new(installed().qnn_htp_library()).with_soc_model(soc_model)
}

/// Requests a session with an HTP builder.
pub(crate) fn request(watch: &Watch, model: &str, asked: HtpBuilder) -> SessionRequest {
    watch.htp_session(ModelInfo::new(model, "1").unwrap(), asked)
}
