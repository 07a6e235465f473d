/*
 * epwatch: placement and latency of ONNX Runtime sessions. docs/c.md is the guide.
 *
 * Every function may be called from any thread, and returns a status. It never throws, and never ends the process.
 * epw_last_error has the sentence to a status other than 0, per thread. Pointers are read during a call only, and must
 * be valid then; a text is UTF-8, with its length, and {NULL, 0} is empty. Texts are returned by copy: at most
 * `capacity` bytes, without a NUL at the end, and `*length` is the whole length. A buffer that is too small is
 * EPW_STATUS_BUFFER_TOO_SMALL; NULL asks for the length only. A handle is a number: one that was
 * closed, or is of another kind, is refused with EPW_STATUS_CLOSED. Structs begin with their size; set all other bytes
 * to 0 first, so that fields of later versions keep their defaults. A struct without a size never grows: texts, handles and
 * the elements of arrays.
 */

#ifndef EPWATCH_H
#define EPWATCH_H

/* Written by a test from the sources (EPWATCH_BLESS=1): do not edit. */

#include <stddef.h>
#include <stdint.h>

// The header's version: major * 10000 + minor * 100 + patch.
#define EPW_VERSION 100

// Result of a call. A number is never used for another meaning; a later version may add numbers.
enum EpwStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  EPW_STATUS_OK = 0,
  // There is nothing to return or to do, which is not an error.
  EPW_STATUS_NONE = 1,
  // A null pointer, or a value out of range.
  EPW_STATUS_INVALID_ARGUMENT = 10,
  // The struct's size belongs neither to this library nor to an older one.
  EPW_STATUS_STRUCT_SIZE = 11,
  // A text is not UTF-8.
  EPW_STATUS_NOT_UTF8 = 12,
  // The handle is closed, or of another kind.
  EPW_STATUS_CLOSED = 13,
  // Too many handles are open.
  EPW_STATUS_TOO_MANY = 14,
  // The buffer is too small: it holds the first bytes, and `*length` is the whole length.
  EPW_STATUS_BUFFER_TOO_SMALL = 15,
  // The configuration is refused.
  EPW_STATUS_CONFIG = 20,
  // The SDK's thread could not be started.
  EPW_STATUS_START = 21,
  // No ONNX Runtime is loaded in this process.
  EPW_STATUS_ORT_NOT_FOUND = 30,
  // ONNX Runtime is older than 1.24: runs are measured, without placement.
  EPW_STATUS_ORT_TOO_OLD = 31,
  // ONNX Runtime refused the option.
  EPW_STATUS_ORT_REFUSED = 32,
  // The upload failed; the reports stay, and are returned again.
  EPW_STATUS_UPLOAD = 40,
  // The time ran out before the work was done.
  EPW_STATUS_TIMEOUT = 41,
  // The SDK could not start again in this forked process: it has no thread, or is too many forks away from the first
  // process.
  EPW_STATUS_FORKED = 42,
  // The folder cannot be used, or is full: recorded runs that are not in it are lost when the process ends, or
  // earlier.
  EPW_STATUS_FOLDER = 43,
  // A bug of epwatch. The host goes on.
  EPW_STATUS_PANIC = 100,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum EpwStatus EpwStatus;
#else
typedef int32_t EpwStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Whether a compiled model (EPContext) is for this device, in the numbers of OrtCompiledModelCompatibility.
enum EpwCompatibility
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Nothing speaks against it, or it is not a compiled model.
  EPW_COMPATIBILITY_UNKNOWN = 0,
  // It was made for this device. Only an EP gives this answer, and EPs are not asked here.
  EPW_COMPATIBILITY_OPTIMAL = 1,
  // It was made for another chipset or runtime: compile it again. It may load.
  EPW_COMPATIBILITY_PREFER_RECOMPILATION = 2,
  // It will not load here.
  EPW_COMPATIBILITY_UNSUPPORTED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum EpwCompatibility EpwCompatibility;
#else
typedef int32_t EpwCompatibility;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// UTF-8 text. It need not end in NUL.
typedef struct EpwText {
  // NULL if the text is empty.
  const char *data;
  // Bytes.
  size_t length;
} EpwText;

// A roll-out group of this installation.
typedef struct EpwLabel {
  // For example "ring".
  struct EpwText key;
  // For example "canary".
  struct EpwText value;
} EpwLabel;

// A function of the app that takes epwatch's problem.
typedef void (*EpwOnHealth)(void *context, struct EpwText problem);

// The SDK's configuration. Only the first five fields are required.
typedef struct EpwConfig {
  // sizeof(EpwConfig)
  size_t size;
  // The app's id at the collector.
  struct EpwText app_id;
  // The collector's address, https://HOST:4717.
  struct EpwText endpoint;
  // The key that authenticates the app.
  struct EpwText app_key;
  // A private folder of the app, which epwatch creates.
  struct EpwText folder;
  // The app's version as its users see it.
  struct EpwText app_version;
  // The app's build.
  struct EpwText app_build;
  // The default is "production".
  struct EpwText environment;
  // Language of the binding; the default is "c".
  struct EpwText language;
  // Id of the operator's public key, if the app obeys directives.
  struct EpwText directive_key_id;
  // The Ed25519 public key: 64 hexadecimal digits.
  struct EpwText directive_key;
  // Android: Build.SOC_MODEL, else Build.HARDWARE. If all fields that describe the device are empty, epwatch reads
  // them from Linux.
  struct EpwText chipset;
  // Android: Build.SOC_MANUFACTURER.
  struct EpwText soc_manufacturer;
  // Android: Build.BOARD.
  struct EpwText board;
  // For example "arm64-v8a".
  struct EpwText abi;
  // Of the device.
  struct EpwText manufacturer;
  // Of the device.
  struct EpwText device_model;
  // For example "android".
  struct EpwText os;
  // For example "15".
  struct EpwText os_version;
  // Android: Build.VERSION.SECURITY_PATCH.
  struct EpwText security_patch;
  // Android: Build.FINGERPRINT. Only its hash is kept.
  struct EpwText vendor_fingerprint;
  // Package of the QNN EP, for example "onnxruntime-qnn".
  struct EpwText ep_package;
  // Its version.
  struct EpwText ep_version;
  // QAIRT version of the runtime.
  struct EpwText qnn_sdk_version;
  // Bytes of memory; 0 is unknown.
  uint64_t ram_bytes;
  // Time between two reports; 0 is 15 minutes.
  uint64_t report_interval_ms;
  // Bytes a day over metered networks; 0 sends nothing there.
  uint64_t metered_bytes_per_day;
  // Android's API level; 0 is unknown.
  uint32_t api_level;
  // Not 0 once the user has consented.
  int32_t has_consent;
  // Not 0: the host sends, see epw_next_upload. In a build without gRPC the host always sends.
  int32_t sends_by_host;
  // Not 0: epw_set_conditions will report the thermal status.
  int32_t reports_thermal;
  // Not 0: epw_set_conditions will report power save.
  int32_t reports_power_save;
  // Not 0: http:// is allowed to hosts other than this one, for test networks.
  int32_t allows_plaintext;
  // PEM file of a client certificate and its chain, for a collector that asks for one (mTLS). Read before each
  // upload, so a renewed one needs no restart.
  struct EpwText client_cert_file;
  // PEM file of the certificate's private key.
  struct EpwText client_key_file;
  // One more root certificate as PEM text, for a collector with a private CA.
  struct EpwText root_certificate;
  // Roll-out groups. The first eight count.
  const struct EpwLabel *rollout_labels;
  // Length of rollout_labels.
  size_t n_rollout_labels;
  // Time between two uploads; 0 is 15 minutes. The collector may ask for another.
  uint64_t upload_interval_ms;
  // Bytes a day over other networks than metered ones; 0 is 64 MiB.
  uint64_t unmetered_bytes_per_day;
  // Roots that are trusted: 0 Mozilla's list in the library, 1 the device's list, 2 only root_certificate.
  int32_t trusted_roots;
  // Not 0: epwatch reads the thermal zones of Linux, and ignores the thermal status of epw_set_conditions.
  int32_t reads_thermal_zones;
  // Called when the problem that epw_explain has as last_problem begins or changes, with the problem. Called with
  // {NULL, 0} when the problem is over. NULL if the app wants no calls. epwatch's thread calls it, until epw_stop
  // has returned EPW_STATUS_OK. It must not throw, nor call epw_flush or epw_stop. The text ends with the call.
  EpwOnHealth on_health;
  // Passed to on_health, from epwatch's thread.
  void *health_context;
} EpwConfig;

// The SDK of this process.
typedef struct EpwWatch {
  // 0 is none.
  uint64_t id;
} EpwWatch;

// Input of epw_preflight. Empty fields are not checked.
typedef struct EpwPreflight {
  // sizeof(EpwPreflight)
  size_t size;
  // Path of QNN's back end, as passed to the QNN EP.
  struct EpwText backend_path;
  // Number of the chipset, as passed to the QNN EP.
  struct EpwText soc_model;
  // Android: applicationInfo.nativeLibraryDir.
  struct EpwText native_library_dir;
  // QAIRT version of the model's export.
  struct EpwText model_qairt;
  // QAIRT version of the runtime.
  struct EpwText runtime_qairt;
  // Version of the QNN plugin.
  struct EpwText plugin_version;
  // Whether the manifest declares libcdsprpc.so: 1 yes, -1 no, 0 not known.
  int32_t declares_rpc_library;
  // 0. Fills the padding that a compiler would insert.
  int32_t reserved;
} EpwPreflight;

// The changes that the operator's directives ask of a session.
typedef struct EpwPlan {
  // 0 is none.
  uint64_t id;
} EpwPlan;

// A captured log, which ONNX Runtime writes while sessions are made.
typedef struct EpwLog {
  // 0 is none.
  uint64_t id;
} EpwLog;

// A model, and how its session is made.
typedef struct EpwModel {
  // sizeof(EpwModel)
  size_t size;
  // 1 to 128 bytes.
  struct EpwText id;
  // 1 to 64 bytes.
  struct EpwText version;
  // SHA-256 of the file as 64 hexadecimal digits, or empty.
  struct EpwText sha256;
  // The EPs that the app asks for, for example "QNNExecutionProvider", without the CPU EP.
  const struct EpwText *requested_eps;
  // Length of requested_eps.
  size_t n_requested_eps;
  // Codes of reasons that the host knows, for example "no_ep_device".
  const struct EpwText *reasons;
  // Length of reasons.
  size_t n_reasons;
  // QNN's htp_performance_mode.
  struct EpwText performance_mode;
  // QNN's soc_model.
  struct EpwText soc_model;
  // QNN's htp_arch.
  struct EpwText htp_arch;
  // The variant that was loaded, if the plan prefers one.
  struct EpwText variant;
  // The plan that the session follows, or 0.
  struct EpwPlan plan;
  // Time that the session's creation took; 0 means not known.
  uint64_t creation_ns;
  // Not 0: the session replaces one whose run failed, for example because the DSP restarted.
  int32_t after_run_error;
  // 0. Fills the padding that a compiler would insert.
  int32_t reserved;
  // Path of the model's file, or empty. The SDK's thread computes its SHA-256 if sha256 is empty. With
  // consent the call that observes the session reads from it whether a compiled model is for this device.
  struct EpwText model_file;
  // The model's side-car, as `epwatch manifest` writes it: JSON with the MACs of each node, or empty. At most 64 MiB.
  struct EpwText side_car;
  // The log of a session like this one, from epw_capture_log, or 0. The call takes the log's content.
  struct EpwLog log;
  // The policy by which ONNX Runtime chooses devices by itself, for example "PREFER_NPU", or empty. It counts if
  // requested_eps names no EP. A text that OrtExecutionProviderDevicePolicy does not have is an unknown policy.
  struct EpwText selection_policy;
  // The device that the EP runs on, if it has several: "NPU", "GPU" or "CPU", for example what OpenVINO's option
  // device_type is given, or empty. Sessions on different devices are judged apart.
  struct EpwText device_type;
} EpwModel;

// An observed session.
typedef struct EpwSession {
  // 0 is none.
  uint64_t id;
} EpwSession;

// A run that the host measured.
typedef struct EpwRun {
  // When the run began, in nanoseconds of CLOCK_MONOTONIC (epw_now).
  uint64_t began_ns;
  // How long the run took.
  uint64_t latency_ns;
} EpwRun;

// A tensor of the host: an input, or a copy of an output.
typedef struct EpwTensor {
  // The tensor's name in the model.
  struct EpwText name;
  // ONNXTensorElementDataType of ONNX Runtime, for example 1 for float. Elements must be numbers.
  int64_t element_type;
  // Dimensions; NULL for a scalar.
  const int64_t *dims;
  // Length of dims.
  size_t n_dims;
  // The elements, little-endian.
  const uint8_t *data;
  // Bytes of data.
  size_t n_bytes;
} EpwTensor;

// A golden input: random or public data, never the data of a user.
typedef struct EpwGolden {
  // sizeof(EpwGolden)
  size_t size;
  // The name of this input in reports: 1 to 64 bytes.
  struct EpwText id;
  // The model's inputs: at most 64, and 64 MiB together.
  const struct EpwTensor *inputs;
  // Length of inputs.
  size_t n_inputs;
  // The greatest absolute difference between two outputs that is accepted; 0 means none is given.
  double tolerance;
} EpwGolden;

// A self-test that has begun.
typedef struct EpwSelfTest {
  // 0 is none.
  uint64_t id;
} EpwSelfTest;

// The outputs of both sessions for the golden input, in one order.
typedef struct EpwOutputs {
  // sizeof(EpwOutputs)
  size_t size;
  // Outputs of the observed session: at most 64, and 64 MiB together.
  const struct EpwTensor *npu;
  // Length of npu.
  size_t n_npu;
  // Outputs of a session of the same model on the CPU.
  const struct EpwTensor *cpu;
  // Length of cpu.
  size_t n_cpu;
  // OrtErrorCode if the run failed on the NPU; 0 if not.
  int32_t npu_error;
  // OrtErrorCode if the run failed on the CPU, or its session could not be made, or -2 without a code; 0 if not.
  int32_t cpu_error;
} EpwOutputs;

// The result of a self-test.
typedef struct EpwTested {
  // sizeof(EpwTested), as the caller sets it
  size_t size;
  // The greatest absolute difference of two elements; -1 if the outputs were not compared.
  double max_abs;
  // The lowest cosine of an output; -2 if the outputs were not compared.
  double cosine;
  // Whether the largest element of every output is the same one: 1 yes, 0 no, -1 not compared.
  int32_t top1_equal;
  // 0, or OrtErrorCode of a failure. -1 means a bug of epwatch, -2 that the CPU session could not be made, -3 that
  // names, types or shapes of the outputs differ. -4 means a NaN or an infinity on one side only, -5 an output other than
  // a tensor of numbers, -6 more than 64 MiB.
  int32_t error_code;
} EpwTested;

// A node of a session's graph, and the EP that runs it.
typedef struct EpwNode {
  // The node's name; may be empty.
  struct EpwText name;
  // ONNX op type.
  struct EpwText op_type;
  // Empty for ONNX's own domain.
  struct EpwText domain;
  // The EP, for example "QNNExecutionProvider"; for another runtime the accelerator, for example "GPU" or "CPU".
  struct EpwText ep;
  // Number of the node's subgraph in the runtime's list. Nodes of a subgraph follow each other.
  uint64_t subgraph;
} EpwNode;

// A session's placement as the host has read it.
typedef struct EpwAssignment {
  // sizeof(EpwAssignment)
  size_t size;
  // ONNX Runtime's version, for example "1.31.1", or another runtime's name and version, for example "LiteRT 2.3.0".
  // Empty if it is not known. A version without a name is refused if a node is on "CPU", which ONNX Runtime calls
  // "CPUExecutionProvider".
  struct EpwText runtime;
  // Nodes in the runtime's order. NULL if the runtime returned no list. ONNX Runtime returns none if it is older
  // than 1.24, or if the session was made without session.record_ep_graph_assignment_info=1.
  const struct EpwNode *nodes;
  // Length of nodes, at most 1,000,000.
  size_t n_nodes;
  // For a precompiled model its metadata ep_compatibility_info.QNNExecutionProvider, else empty.
  struct EpwText ep_compatibility;
} EpwAssignment;

// A request to the collector. It is open until its answer or failure is given.
typedef struct EpwUpload {
  // 0 is none.
  uint64_t id;
} EpwUpload;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the library's version, in the form of EPW_VERSION. A library of a later version takes the structs of an
// earlier header.
uint32_t epw_version(void);

// Copies the sentence that explains this thread's last status other than 0, 1 and 15.
EpwStatus epw_last_error(char *buffer, size_t capacity, size_t *length);

// Turns ONNX Runtime's own telemetry off for this process, by the environment variable ORT_DISABLE_TELEMETRY. Call it before
// ONNX Runtime makes its environment, and while no other thread reads or writes environment variables: first in main. A
// later call has no effect. Works before epw_start.
EpwStatus epw_disable_runtime_telemetry(void);

// Starts the SDK. A thread of its own does all work with files and the network. The child of a fork starts its own
// thread and stream at its first call or run. Handles, settings and folder stay the same.
EpwStatus epw_start(const struct EpwConfig *config,
                    struct EpwWatch *watch);

// Seals recorded runs, ends the thread, and closes the handle. Returns EPW_STATUS_TIMEOUT if the thread is still busy,
// EPW_STATUS_FOLDER if runs could not be stored and are lost.
EpwStatus epw_stop(struct EpwWatch watch,
                   uint64_t timeout_ms);

// Gives or withdraws the user's consent. A withdrawal wipes the folder and asks the collector to delete everything.
EpwStatus epw_set_consent(struct EpwWatch watch,
                          int32_t is_given);

// Sets the conditions of runs from now on. `thermal` is Android's status, 0 to 6; `power_save` is 0 or 1; -1 is not
// known.
EpwStatus epw_set_conditions(struct EpwWatch watch,
                             int32_t thermal,
                             int32_t power_save,
                             struct EpwText performance_mode);

// Sets the network: 0 not known, 1 unmetered, 2 metered, 3 none.
EpwStatus epw_set_network(struct EpwWatch watch, int32_t network);

// Seals recorded runs at once, for example when the app goes to the background. Touches the disk. Returns
// EPW_STATUS_FOLDER if runs could not be stored, now or since the last call that returned it.
EpwStatus epw_seal(struct EpwWatch watch);

// Seals and sends everything, if the library sends by itself. Blocks at most the given time. Returns EPW_STATUS_FORKED
// at once in a forked process in which the SDK could not start again.
EpwStatus epw_flush(struct EpwWatch watch,
                    uint64_t timeout_ms);

// Copies one JSON object: sessions with placements and reasons, checks, directives, the last upload, the last
// problem. May wait for the disk.
EpwStatus epw_explain(struct EpwWatch watch, char *buffer, size_t capacity, size_t *length);

// Counts causes that keep the NPU from starting; epw_explain lists them. Touches the disk.
EpwStatus epw_preflight(struct EpwWatch watch, const struct EpwPreflight *facts, size_t *n_found);

// Makes a plan for the next session of a model from the directives. Waits at most the given time until the directives
// are read, which takes milliseconds at the start of a process. Close the plan after the session was observed.
EpwStatus epw_plan(struct EpwWatch watch,
                   const struct EpwModel *model,
                   uint64_t timeout_ms,
                   struct EpwPlan *plan);

// Writes 1 if the session may use the NPU, 0 if it must be made for the CPU.
EpwStatus epw_plan_use_npu(struct EpwPlan plan, int32_t *use_npu);

// Copies the name of the model's variant that the app should load if it has it; empty for the usual one.
EpwStatus epw_plan_variant(struct EpwPlan plan, char *buffer, size_t capacity, size_t *length);

// Closes a plan.
EpwStatus epw_plan_close(struct EpwPlan plan);

// Writes whether the compiled model in model_file is for this device, before it is loaded. The chipset and the version of QNN
// that its file names are compared with soc_model or the device, and with qnn_sdk_version of the configuration. It must be of an
// EP in requested_eps. Reads the file, and no graph that was compiled. Further fields of the model are not read. Returns
// EPW_STATUS_INVALID_ARGUMENT if there is no requested EP, or if the file cannot be opened.
EpwStatus epw_compatibility(struct EpwWatch watch,
                            const struct EpwModel *model,
                            EpwCompatibility *answer);

// Makes sessions of these OrtSessionOptions write to a log, at VERBOSE, in place of the app's own logger. The log has
// the reason for each node that the NPU refuses. With ONNX Runtime 1.17 to 1.23 it also has the placement. A session
// with these options formats some ten lines in each run. So pass a copy (CloneSessionOptions), make a session with the
// copy just before your own, and release both. Then name the log in EpwModel. Options that write files or share
// contexts are turned off in the copy.
EpwStatus epw_capture_log(const void *ort_api_base,
                          void *options,
                          struct EpwLog *log);

// Ends a log. Later lines are dropped.
EpwStatus epw_log_close(struct EpwLog log);

// Makes sessions of these OrtSessionOptions keep the EP of each node: call it before the session is made.
// `ort_api_base` is what OrtGetApiBase() returns, or NULL for the ONNX Runtime that is loaded. The session can be made
// whatever this call returns.
EpwStatus epw_prepare_options(const void *ort_api_base,
                              void *options);

// Observes an OrtSession, and reads its placement once. The session still belongs to the host, which may close it
// after this call. Without ONNX Runtime or a session (NULL) runs are measured, and epw_explain_session has the reason.
EpwStatus epw_observe(struct EpwWatch watch,
                      const void *ort_api_base,
                      const void *session,
                      const struct EpwModel *model,
                      struct EpwSession *observed);

// Counts a session that could not be made, with ONNX Runtime's error code and message. Paths and numbers in the message
// do not leave the device.
EpwStatus epw_start_failed(struct EpwWatch watch,
                           const void *ort_api_base,
                           const struct EpwModel *model,
                           int32_t ort_error_code,
                           struct EpwText message);

// Returns nanoseconds of CLOCK_MONOTONIC, the clock of Java's System.nanoTime on Android and Linux.
uint64_t epw_now(void);

// Records a run of a model with a fixed input shape. Never blocks, and reads no clock. A latency beyond the longest
// that a report can hold is recorded as the longest. The first run in the child of a fork begins a session in the
// child's own stream, and takes as long as epw_observe.
EpwStatus epw_record(struct EpwSession session,
                     uint64_t began_ns,
                     uint64_t latency_ns);

// Does the same as epw_record, for a model with free dimensions. A shape is for example "x:1x3x224x224". A session
// keeps 8 shapes apart, and counts further ones together.
EpwStatus epw_record_shape(struct EpwSession session,
                           uint64_t began_ns,
                           uint64_t latency_ns,
                           struct EpwText shape);

// Records runs of a model with a fixed input shape.
EpwStatus epw_record_all(struct EpwSession session, const struct EpwRun *runs, size_t n_runs);

// Counts a run that failed with this code of ONNX Runtime (OrtErrorCode: 1 or more). 15 (ORT_DEVICE_RESET) is a restart of the DSP: make the
// session again, with after_run_error.
EpwStatus epw_record_error(struct EpwSession session,
                           int32_t ort_error_code);

// Copies the session's part of epw_explain: EPs, nodes on the CPU, fingerprints, reasons. Never waits for the disk.
EpwStatus epw_explain_session(struct EpwSession session,
                              char *buffer,
                              size_t capacity,
                              size_t *length);

// Ends the recording of a session. Its runs are sealed with the next report.
EpwStatus epw_session_close(struct EpwSession session);

// Begins a self-test: does the NPU compute what the CPU computes? Returns EPW_STATUS_NONE if there is nothing to do.
// That is: the test ran before with this model, firmware and runtime, or another thread runs it. Or no node is on
// the NPU, or the folder is not open. Otherwise run the golden input on this session and on a session for the CPU,
// without recording, and call epw_self_test_end. A test that never ends, because the NPU takes the process down, is
// tried in three processes at most. Touches the disk: call it from a background thread.
EpwStatus epw_self_test_begin(struct EpwSession session,
                              const struct EpwGolden *golden,
                              struct EpwSelfTest *test);

// Closes a test without a result. It counts as an attempt that took the process down: three processes try at most.
EpwStatus epw_self_test_close(struct EpwSelfTest test);

// Compares the outputs, keeps the result for the next report, and closes the test. Reports have hashes and distances,
// no outputs. `tested` may be NULL; otherwise its size must be set. If an argument cannot be read, the test stays open:
// call this again, or epw_self_test_close.
EpwStatus epw_self_test_end(struct EpwSelfTest test,
                            const struct EpwOutputs *outputs,
                            struct EpwTested *tested);

// Observes a session by a placement that the host has read. It replaces epw_observe where a binding of ONNX Runtime
// returns the EP of each node but no OrtSession, and for hosts with another runtime. With ONNX Runtime, set the
// session option session.record_ep_graph_assignment_info to "1" before the session is made. Without a list runs are
// measured, and epw_explain_session has the reason.
EpwStatus epw_observe_assignment(struct EpwWatch watch,
                                 const struct EpwModel *model,
                                 const struct EpwAssignment *assignment,
                                 struct EpwSession *observed);

// Returns the next request for a host that sends by itself, or EPW_STATUS_NONE if there is nothing to send now.
// Touches the disk: call it from a background thread, one request at a time. POST epw_upload_body to the endpoint with
// the path of epw_upload_path, `content-type: application/proto` and `authorization: Bearer <app key>`.
EpwStatus epw_next_upload(struct EpwWatch watch,
                          struct EpwUpload *upload);

// Copies the path of a request.
EpwStatus epw_upload_path(struct EpwUpload upload, char *buffer, size_t capacity, size_t *length);

// Copies the body of a request.
EpwStatus epw_upload_body(struct EpwUpload upload, char *buffer, size_t capacity, size_t *length);

// Passes on the body of the collector's answer with HTTP status 200 and `content-type: application/proto`, and closes
// the request. Returns EPW_STATUS_UPLOAD if the answer does not acknowledge this request, for example a proxy's empty
// answer. Nothing is deleted then, and a later request has the same content.
EpwStatus epw_upload_answer(struct EpwUpload upload,
                            const uint8_t *answer,
                            size_t length);

// Passes on another HTTP status of the collector, or 0 if there was none, and closes the request. `retry_after_ms` is
// the collector's retry-after, or 0; `message` is for epw_explain.
EpwStatus epw_upload_failed(struct EpwUpload upload,
                            int32_t http_status,
                            uint64_t retry_after_ms,
                            struct EpwText message);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EPWATCH_H */
