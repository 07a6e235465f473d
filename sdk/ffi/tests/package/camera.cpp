// A project outside the tree, with the installed package.
// camera ENDPOINT FOLDER
#include <epwatch.hpp>

#include <iostream>
#include <stdexcept>
#include <string>

namespace {

// As Ort::Exception.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
  int GetOrtErrorCode() const { return 6; }
};

template <typename Run> void fails(Run run) {
  try {
    run();
  } catch (const std::runtime_error &) {
    return;
  }
  throw std::logic_error("it did not fail");
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  try {
    epwatch::Watch refused(epwatch::config("", argv[1], "demo-key", argv[2]));
    return 3;
  } catch (const epwatch::Error &error) {
    if (error.status() != EPW_STATUS_CONFIG) return 4;
    std::cout << error.what() << "\n";
  }
  EpwConfig config = epwatch::config("com.example.camera", argv[1], "demo-key", argv[2]);
  config.has_consent = 1;
  config.report_interval_ms = 3600 * 1000;
  epwatch::Watch watch(config);
  watch.set_conditions(3);
  {
    const auto plan = watch.plan(epwatch::model("segmenter", "3"), std::chrono::seconds(5));
    EpwModel model = epwatch::model("segmenter", "3");
    model.plan = plan.handle();
    epwatch::Session observed = watch.observe(model);
    epwatch::Session moved = std::move(observed);
    int n = 0;
    for (int i = 0; i < 10; i++) n = moved.measure([&] { return n + 1; });
    int &same = moved.measure([&]() -> int & { return n; });
    if (n != 10 || &same != &n) return 5;
    moved.record(epw_now(), std::chrono::microseconds(80), "x:1x3x32x32");
    fails([&] { moved.measure([] { throw std::runtime_error("failed"); }); });
    fails([&] { moved.measure<Refused>([]() -> int { throw Refused("failed"); }); });
    // Nothing is on an NPU, and no ONNX Runtime is loaded.
    const float pixel = 0.5F;
    EpwTensor input{};
    input.name = epwatch::text("x");
    input.element_type = 1;
    input.data = reinterpret_cast<const std::uint8_t *>(&pixel);
    input.n_bytes = sizeof pixel;
    EpwGolden golden{};
    golden.size = sizeof golden;
    golden.id = epwatch::text("one");
    golden.inputs = &input;
    golden.n_inputs = 1;
    if (moved.self_test(golden, [](EpwOutputs &) { throw std::logic_error("it ran"); })) return 7;
    fails([] { epwatch::Log log(nullptr); });
    if (moved.explain().find("segmenter") == std::string::npos || !plan.use_npu()) return 6;
    watch.flush(std::chrono::minutes(5));
  }
  EpwPreflight facts{};
  facts.size = sizeof facts;
  if (watch.preflight(facts) != 0) return 8;
  facts.model_qairt = epwatch::text("2.31.0");
  facts.runtime_qairt = epwatch::text("2.20.0");
  if (watch.preflight(facts) != 1 || watch.explain().find("2.31.0") == std::string::npos) return 8;
  {
    // An app that sends by itself. An answer to another request acknowledges nothing.
    const std::string folder = std::string(argv[2]) + "-by-app";
    EpwConfig by_app = epwatch::config("com.example.camera", argv[1], "demo-key", folder);
    by_app.has_consent = 1;
    by_app.sends_by_host = 1;
    epwatch::Watch sender(by_app);
    if (sender.next_upload()) return 9;
    sender.observe(epwatch::model("segmenter", "3")).record(epw_now(), std::chrono::microseconds(80));
    sender.seal();
    auto upload = sender.next_upload();
    if (!upload || upload->path().front() != '/' || upload->body().empty()) return 10;
    fails([&] { upload->answer(""); });
  }
  std::cout << watch.explain() << "\n";
  return 0;
}
