// epwatch for C++17: handles that close themselves, and errors that are exceptions. docs/c.md is the guide.
//
//   epwatch::Watch watch(epwatch::config("com.example.robot", endpoint, key, folder));
//   epwatch::Session observed = watch.observe(epwatch::model("segmenter", "3"), session);
//   auto outputs = observed.measure<Ort::Exception>([&] { return session.Run(...); });
//
// Header only, over epwatch.h, whose structs have all settings. Texts are not copied before the call that reads them.
// Calls that open something throw epwatch::Error. Calls that record never throw, and no call changes a run's result.
#ifndef EPWATCH_HPP
#define EPWATCH_HPP

#include "epwatch.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace epwatch {

/// A text that lives as long as its characters.
inline EpwText text(std::string_view characters) noexcept { return EpwText{characters.data(), characters.size()}; }

/// A call that failed.
class Error : public std::runtime_error {
public:
  Error(EpwStatus status, const std::string &sentence) : std::runtime_error(sentence), status_(status) {}
  EpwStatus status() const noexcept { return status_; }

private:
  EpwStatus status_;
};

/// Returns a text that epwatch copies out: `call` takes the buffer, its capacity and a pointer for the length.
template <typename Call> std::string copied(Call call) {
  std::string whole;
  std::size_t length = 0;
  EpwStatus status = call(nullptr, 0, &length);
  // The text may grow between two calls.
  while (status == EPW_STATUS_OK && length > whole.size()) {
    whole.resize(length);
    status = call(whole.data(), whole.size(), &length);
    if (status == EPW_STATUS_BUFFER_TOO_SMALL) status = EPW_STATUS_OK;
  }
  if (status != EPW_STATUS_OK) length = 0;
  whole.resize(length);
  return whole;
}

/// Throws an Error with the status's sentence unless the status is OK.
inline void check(EpwStatus status) {
  if (status != EPW_STATUS_OK) throw Error(status, copied(epw_last_error));
}

/// A configuration with consent withheld. All other fields are as in EpwConfig.
inline EpwConfig config(std::string_view app_id, std::string_view endpoint, std::string_view app_key,
                        std::string_view folder) noexcept {
  EpwConfig made{};
  made.size = sizeof made;
  made.app_id = text(app_id);
  made.endpoint = text(endpoint);
  made.app_key = text(app_key);
  made.folder = text(folder);
  return made;
}

/// A model. All other fields are as in EpwModel.
inline EpwModel model(std::string_view id, std::string_view version) noexcept {
  EpwModel made{};
  made.size = sizeof made;
  made.id = text(id);
  made.version = text(version);
  return made;
}

/// An observed session, which ends with its scope.
class Session {
public:
  /// Takes a handle over.
  explicit Session(EpwSession handle) noexcept : handle_(handle) {}
  Session(Session &&other) noexcept : handle_(std::exchange(other.handle_, EpwSession{})) {}
  Session &operator=(Session &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Session() {
    if (handle_.id != 0) epw_session_close(handle_);
  }

  /// Makes a run and records its latency. Returns or throws what the run does; a run that throws counts as failed.
  template <typename Run> decltype(auto) measure(Run &&run) const {
    const Measured measured(handle_);
    return std::forward<Run>(run)();
  }

  /// Does the same as the other measure, and records the code of ONNX Runtime's exception:
  /// measure<Ort::Exception>(run).
  template <typename OrtException, typename Run> decltype(auto) measure(Run &&run) const {
    Measured measured(handle_);
    try {
      return std::forward<Run>(run)();
    } catch (const OrtException &error) {
      measured.code = static_cast<int>(error.GetOrtErrorCode());
      throw;
    }
  }

  /// Records a run that the app has measured. `began_ns` comes from epw_now.
  void record(std::uint64_t began_ns, std::chrono::nanoseconds latency) const noexcept {
    epw_record(handle_, began_ns, ns(latency));
  }

  /// Does the same as the other record, for a model with free dimensions and the shape "x:1x3x224x224", for example.
  void record(std::uint64_t began_ns, std::chrono::nanoseconds latency, std::string_view shape) const noexcept {
    epw_record_shape(handle_, began_ns, ns(latency), text(shape));
  }

  /// Counts a run that failed with this OrtErrorCode.
  void record_error(int ort_error_code) const noexcept { epw_record_error(handle_, ort_error_code); }

  /// Runs a self-test: does the NPU compute what the CPU computes? `run` fills the outputs of both sessions, and keeps
  /// them alive until this call returns. Returns no value if there was nothing to do; `run` was then not called. If it
  /// throws, there is no result: the next process tries again, three at most.
  template <typename Run> std::optional<EpwTested> self_test(const EpwGolden &golden, Run &&run) const {
    EpwSelfTest test{};
    const EpwStatus begun = epw_self_test_begin(handle_, &golden, &test);
    if (begun == EPW_STATUS_NONE) return std::nullopt;
    check(begun);
    // The test ends here, also if `run` throws or if its outputs are refused. A test that has ended is closed already.
    struct Closing {
      ~Closing() { epw_self_test_close(test); }
      EpwSelfTest test;
    } closing{test};
    EpwOutputs outputs{};
    outputs.size = sizeof outputs;
    std::forward<Run>(run)(outputs);
    EpwTested tested{};
    tested.size = sizeof tested;
    check(epw_self_test_end(test, &outputs, &tested));
    return tested;
  }

  /// Returns the session's part of Watch::explain, as JSON.
  std::string explain() const {
    return copied([this](char *b, std::size_t c, std::size_t *n) { return epw_explain_session(handle_, b, c, n); });
  }

  EpwSession handle() const noexcept { return handle_; }

private:
  // Measures a run's time, which ends with the scope: when the run ends or throws.
  struct Measured {
    explicit Measured(EpwSession of) noexcept : session(of) {}
    ~Measured() {
      const std::uint64_t latency = epw_now() - began;
      if (std::uncaught_exceptions() > exceptions) {
        epw_record_error(session, code > 0 ? code : 1);
      } else {
        epw_record(session, began, latency);
      }
    }
    EpwSession session;
    int code = 1;
    int exceptions = std::uncaught_exceptions();
    std::uint64_t began = epw_now();
  };

  static std::uint64_t ns(std::chrono::nanoseconds time) noexcept {
    return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
  }

  EpwSession handle_;
};

/// Captures the log of a session that is made with these options. Pass a copy of the options, and drop the copy and its
/// session afterwards.
class Log {
public:
  explicit Log(void *session_options, const void *ort_api_base = nullptr) {
    check(epw_capture_log(ort_api_base, session_options, &handle_));
  }
  Log(Log &&other) noexcept : handle_(std::exchange(other.handle_, EpwLog{})) {}
  Log &operator=(Log &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Log() {
    if (handle_.id != 0) epw_log_close(handle_);
  }

  /// For EpwModel's field.
  EpwLog handle() const noexcept { return handle_; }

private:
  EpwLog handle_{};
};

/// The changes that the operator's directives ask of a model's next session.
class Plan {
public:
  explicit Plan(EpwPlan handle) noexcept : handle_(handle) {}
  Plan(Plan &&other) noexcept : handle_(std::exchange(other.handle_, EpwPlan{})) {}
  Plan &operator=(Plan &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Plan() {
    if (handle_.id != 0) epw_plan_close(handle_);
  }

  bool use_npu() const noexcept {
    std::int32_t answer = 1;
    return epw_plan_use_npu(handle_, &answer) != EPW_STATUS_OK || answer != 0;
  }

  std::string variant() const {
    return copied([this](char *b, std::size_t c, std::size_t *n) { return epw_plan_variant(handle_, b, c, n); });
  }

  /// For EpwModel's field.
  EpwPlan handle() const noexcept { return handle_; }

private:
  EpwPlan handle_;
};

/// A request that the app itself sends: POST body() to the endpoint with path(), as epw_next_upload says. If neither answer
/// nor failed is called, it counts as unanswered.
class Upload {
public:
  explicit Upload(EpwUpload handle) noexcept : handle_(handle) {}
  Upload(Upload &&other) noexcept : handle_(std::exchange(other.handle_, EpwUpload{})) {}
  Upload &operator=(Upload &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Upload() {
    if (handle_.id != 0) failed(0, "no answer");
  }

  std::string path() const {
    return copied([this](char *b, std::size_t c, std::size_t *n) { return epw_upload_path(handle_, b, c, n); });
  }
  std::string body() const {
    return copied([this](char *b, std::size_t c, std::size_t *n) { return epw_upload_body(handle_, b, c, n); });
  }

  /// Passes on the body of an answer with status 200, and ends the request. Throws if it does not acknowledge this request.
  void answer(std::string_view body) {
    const auto *bytes = reinterpret_cast<const std::uint8_t *>(body.data());
    check(epw_upload_answer(std::exchange(handle_, EpwUpload{}), bytes, body.size()));
  }

  /// Passes on another status, or 0 without an answer, and ends the request. `retry_after` is the collector's, or 0.
  void failed(int http_status, std::string_view message, std::chrono::milliseconds retry_after = {}) noexcept {
    const auto ms = static_cast<std::uint64_t>(retry_after.count());
    epw_upload_failed(std::exchange(handle_, EpwUpload{}), http_status, ms, text(message));
  }

private:
  EpwUpload handle_;
};

/// The SDK of this process. Its destructor seals the recorded runs, and waits for at most five seconds.
class Watch {
public:
  explicit Watch(const EpwConfig &config) { check(epw_start(&config, &handle_)); }
  Watch(Watch &&other) noexcept : handle_(std::exchange(other.handle_, EpwWatch{})) {}
  Watch &operator=(Watch &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Watch() {
    if (handle_.id != 0) epw_stop(handle_, 5000);
  }

  void set_consent(bool is_given) const { check(epw_set_consent(handle_, is_given)); }
  void set_network(int network) const { check(epw_set_network(handle_, network)); }
  void set_conditions(int thermal, int power_save = -1, std::string_view performance_mode = {}) const {
    check(epw_set_conditions(handle_, thermal, power_save, text(performance_mode)));
  }

  /// Whether the compiled model in model_file is for this device, before it is loaded.
  EpwCompatibility compatibility(const EpwModel &model) const {
    EpwCompatibility answer = EPW_COMPATIBILITY_UNKNOWN;
    check(epw_compatibility(handle_, &model, &answer));
    return answer;
  }

  Plan plan(const EpwModel &model, std::chrono::milliseconds timeout) const {
    EpwPlan plan{};
    check(epw_plan(handle_, &model, static_cast<std::uint64_t>(timeout.count()), &plan));
    return Plan(plan);
  }

  /// Checks what the app knows before its first session. Returns the number of problems, which Watch::explain names.
  std::size_t preflight(const EpwPreflight &facts) const {
    std::size_t n_found = 0;
    check(epw_preflight(handle_, &facts, &n_found));
    return n_found;
  }

  /// Observes an OrtSession, which an Ort::Session converts to. Its options were given to epw_prepare_options.
  Session observe(const EpwModel &model, const void *ort_session = nullptr, const void *ort_api_base = nullptr) const {
    EpwSession observed{};
    check(epw_observe(handle_, ort_api_base, ort_session, &model, &observed));
    return Session(observed);
  }

  /// Observes a session whose placement the app itself has read.
  Session observe(const EpwModel &model, const EpwAssignment &read) const {
    EpwSession observed{};
    check(epw_observe_assignment(handle_, &model, &read, &observed));
    return Session(observed);
  }

  /// Counts a session that could not be made.
  void start_failed(const EpwModel &model, int ort_error_code, std::string_view message) const noexcept {
    epw_start_failed(handle_, nullptr, &model, ort_error_code, text(message));
  }

  void seal() const { check(epw_seal(handle_)); }
  void flush(std::chrono::milliseconds timeout) const {
    check(epw_flush(handle_, static_cast<std::uint64_t>(timeout.count())));
  }

  /// Returns the next request for an app that sends by itself, or no value if there is nothing to send now.
  std::optional<Upload> next_upload() const {
    EpwUpload upload{};
    const EpwStatus status = epw_next_upload(handle_, &upload);
    if (status == EPW_STATUS_NONE) return std::nullopt;
    check(status);
    return Upload(upload);
  }

  /// Ends the SDK. Unlike the destructor it throws if runs could not be stored.
  void stop(std::chrono::milliseconds timeout) {
    check(epw_stop(std::exchange(handle_, EpwWatch{}), static_cast<std::uint64_t>(timeout.count())));
  }

  /// Returns one JSON object.
  std::string explain() const {
    return copied([this](char *b, std::size_t c, std::size_t *n) { return epw_explain(handle_, b, c, n); });
  }

  EpwWatch handle() const noexcept { return handle_; }

private:
  EpwWatch handle_{};
};

}  // namespace epwatch

#endif  // EPWATCH_HPP
