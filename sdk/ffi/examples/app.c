/*
 * An app in C whose ONNX Runtime sessions epwatch watches.
 *
 * app ORT_LIBRARY MODEL FOLDER ENDPOINT [QNN_PLUGIN QNN_BACKEND SOC_MODEL [SIDE_CAR]]
 *
 * With a side-car of `epwatch manifest` it also reports MACs, the reasons of the NPU's refusals, and whether the NPU
 * computes what the CPU computes.
 */
#include "epwatch.h"
#include "ort.h"
#include <string.h>

static const char *QNN = "QNNExecutionProvider";

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

/* Prints why a call did less than it was asked for. The app goes on. */
static int done(EpwStatus status, const char *call) {
  char why[512];
  size_t length = 0;
  if (status == EPW_STATUS_OK) return 1;
  epw_last_error(why, sizeof why, &length);
  if (length > sizeof why) length = sizeof why;
  fprintf(stderr, "%s: %d, %.*s\n", call, (int)status, (int)length, why);
  return 0;
}

static EpwWatch start(const char *folder, const char *endpoint) {
  EpwWatch watch = {0};
  EpwConfig config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text(endpoint);
  config.app_key = text("demo-key");
  config.folder = text(folder);
  config.app_version = text("3.2.1");
  config.app_build = text("4711");
  config.chipset = text("SM8650");
  config.report_interval_ms = 3600 * 1000;
  config.has_consent = 1;
  done(epw_start(&config, &watch), "epw_start");
  return watch;
}

/* Adds Qualcomm's plugin to the options. */
static void add_npu(void *env, void *options, char **argv) {
  const void *const *devices;
  size_t n, i;
  const char *keys[] = {"backend_path", "soc_model"};
  const char *values[2];
  values[0] = argv[6];
  values[1] = argv[7];
  ORT(REGISTER_EP_LIBRARY, (void *, const char *, const char *), env, QNN, argv[5]);
  ORT(GET_EP_DEVICES, (void *, const void *const **, size_t *), env, &devices, &n);
  for (i = 0; i < n; i++) {
    if (strcmp(((const char *(*)(const void *))ort_api[EP_DEVICE_NAME])(devices[i]), QNN) == 0) {
      ORT(APPEND_EP,
          (void *, void *, const void *const *, size_t, const char *const *, const char *const *, size_t),
          options, env, &devices[i], 1, keys, values, 2);
      return;
    }
  }
}

/* Makes a session of a copy of the options, and drops it: its log has the reason of each node that the NPU refuses. */
static EpwLog captured(void *env, void *options, const char *path) {
  EpwLog log = {0};
  void *copy, *session;
  ORT(CLONE_SESSION_OPTIONS, (void *, void **), options, &copy);
  if (done(epw_capture_log(ort_base, copy, &log), "epw_capture_log")) {
    ORT(CREATE_SESSION, (void *, const char *, void *, void **), env, path, copy, &session);
    ORT_RELEASE(RELEASE_SESSION, session);
  }
  ORT_RELEASE(RELEASE_SESSION_OPTIONS, copy);
  return log;
}

/* Reads a small file, to its end or to the end of the buffer. */
static EpwText contents(const char *path, char *buffer, size_t capacity) {
  EpwText read = {buffer, 0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) return read;
  read.length = fread(buffer, 1, capacity, file);
  fclose(file);
  return read;
}

/* An output of floats, as long as ONNX Runtime's value lives. */
static EpwTensor output_of(const char *name, void *value, int64_t dims[8]) {
  EpwTensor tensor;
  void *info, *data;
  size_t n = 0;
  memset(&tensor, 0, sizeof tensor);
  ORT(GET_TENSOR_TYPE_AND_SHAPE, (void *, void **), value, &info);
  ORT(GET_DIMENSIONS_COUNT, (void *, size_t *), info, &tensor.n_dims);
  if (tensor.n_dims > 8) exit(3);
  ORT(GET_DIMENSIONS, (void *, int64_t *, size_t), info, dims, tensor.n_dims);
  ORT(GET_TENSOR_SHAPE_ELEMENT_COUNT, (void *, size_t *), info, &n);
  ORT(GET_TENSOR_MUTABLE_DATA, (void *, void **), value, &data);
  ORT_RELEASE(RELEASE_TENSOR_TYPE_AND_SHAPE_INFO, info);
  tensor.name = text(name);
  tensor.element_type = 1;
  tensor.dims = dims;
  tensor.data = data;
  tensor.n_bytes = n * sizeof(float);
  return tensor;
}

/* Does the NPU compute what the CPU computes? Once for each model, firmware and runtime. */
static void self_test(EpwSession observed, void *env, const char *path, void *npu, char *input_name, void *input,
                      char *output_name) {
  void *options, *cpu, *of_npu = NULL, *of_cpu = NULL;
  int64_t dims[2][8];
  EpwTensor golden_input = output_of(input_name, input, dims[0]), outputs[2];
  EpwGolden golden;
  EpwOutputs both;
  EpwSelfTest test = {0};
  EpwTested tested = {sizeof tested, 0, 0, 0, 0};
  EpwStatus begun;
  memset(&golden, 0, sizeof golden);
  golden.size = sizeof golden;
  golden.id = text("ramp-1");
  golden.inputs = &golden_input;
  golden.n_inputs = 1;
  begun = epw_self_test_begin(observed, &golden, &test);
  if (begun == EPW_STATUS_NONE) puts("self_test none");
  if (begun == EPW_STATUS_NONE || !done(begun, "epw_self_test_begin")) return;
  ORT(RUN, (void *, void *, char **, void **, size_t, char **, size_t, void **), npu, NULL, &input_name, &input, 1,
      &output_name, 1, &of_npu);
  ORT(CREATE_SESSION_OPTIONS, (void **), &options);
  ORT(CREATE_SESSION, (void *, const char *, void *, void **), env, path, options, &cpu);
  ORT(RUN, (void *, void *, char **, void **, size_t, char **, size_t, void **), cpu, NULL, &input_name, &input, 1,
      &output_name, 1, &of_cpu);
  outputs[0] = output_of(output_name, of_npu, dims[0]);
  outputs[1] = output_of(output_name, of_cpu, dims[1]);
  memset(&both, 0, sizeof both);
  both.size = sizeof both;
  both.npu = &outputs[0];
  both.n_npu = 1;
  both.cpu = &outputs[1];
  both.n_cpu = 1;
  if (done(epw_self_test_end(test, &both, &tested), "epw_self_test_end"))
    printf("self_test %.9g %.9g %d %d\n", tested.max_abs, tested.cosine, (int)tested.top1_equal, (int)tested.error_code);
  ORT_RELEASE(RELEASE_VALUE, of_npu);
  ORT_RELEASE(RELEASE_VALUE, of_cpu);
  ORT_RELEASE(RELEASE_SESSION, cpu);
  ORT_RELEASE(RELEASE_SESSION_OPTIONS, options);
}

int main(int argc, char **argv) {
  void *env, *options, *session, *memory, *input, *output = NULL, *allocator;
  char *input_name, *output_name;
  static float pixels[3 * 32 * 32];
  int64_t dims[] = {1, 3, 32, 32};
  uint64_t began;
  int32_t use_npu = 1;
  int i;
  static char json[65536], side_car[65536];
  size_t length = 0;
  EpwWatch watch;
  EpwPlan plan = {0};
  EpwModel model;
  EpwSession observed = {0};
  EpwText qnn = text(QNN);
  if (argc != 5 && argc != 8 && argc != 9) return 2;
  for (i = 0; i < 3 * 32 * 32; i++) pixels[i] = (float)i / (3 * 32 * 32);

  watch = start(argv[3], argv[4]);
  ort_load(argv[1]);
  ORT(CREATE_ENV, (int, const char *, void **), 2, "app", &env);
  ORT(CREATE_SESSION_OPTIONS, (void **), &options);

  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  model.requested_eps = &qnn;
  model.n_requested_eps = argc >= 8 ? 1 : 0;
  if (argc >= 8) model.soc_model = text(argv[7]);
  /* An operator's directive may forbid the NPU for this model and chipset. */
  if (done(epw_plan(watch, &model, 200, &plan), "epw_plan")) epw_plan_use_npu(plan, &use_npu);
  model.plan = plan;
  if (argc >= 8 && use_npu) add_npu(env, options, argv);

  done(epw_prepare_options(ort_base, options), "epw_prepare_options");
  if (argc == 9) {
    model.side_car = contents(argv[8], side_car, sizeof side_car);
    model.log = captured(env, options, argv[2]);
  }
  began = epw_now();
  ORT(CREATE_SESSION, (void *, const char *, void *, void **), env, argv[2], options, &session);
  model.creation_ns = epw_now() - began;
  done(epw_observe(watch, ort_base, session, &model, &observed), "epw_observe");
  epw_plan_close(plan);
  if (argc == 9) epw_log_close(model.log);

  ORT(GET_DEFAULT_ALLOCATOR, (void **), &allocator);
  ORT(SESSION_GET_INPUT_NAME, (void *, size_t, void *, char **), session, 0, allocator, &input_name);
  ORT(SESSION_GET_OUTPUT_NAME, (void *, size_t, void *, char **), session, 0, allocator, &output_name);
  ORT(CREATE_CPU_MEMORY_INFO, (int, int, void **), 1, 0, &memory);
  ORT(CREATE_TENSOR_WITH_DATA, (void *, void *, size_t, int64_t *, size_t, int, void **), memory, pixels,
      sizeof pixels, dims, 4, 1, &input);
  for (i = 0; i < 20; i++) {
    began = epw_now();
    ORT(RUN, (void *, void *, char **, void **, size_t, char **, size_t, void **), session, NULL, &input_name,
        &input, 1, &output_name, 1, &output);
    epw_record(observed, began, epw_now() - began);
    ORT_RELEASE(RELEASE_VALUE, output);
    output = NULL;
  }
  if (argc == 9) {
    self_test(observed, env, argv[2], session, input_name, input, output_name);
    self_test(observed, env, argv[2], session, input_name, input, output_name);
  }
  /* In an app: when a run fails, with ONNX Runtime's code. */
  epw_record_error(observed, 2);

  done(epw_explain_session(observed, json, sizeof json, &length), "epw_explain_session");
  if (length <= sizeof json) printf("%.*s\n", (int)length, json);
  epw_session_close(observed);
  done(epw_flush(watch, 30000), "epw_flush");
  done(epw_stop(watch, 5000), "epw_stop");

  ORT(ALLOCATOR_FREE, (void *, void *), allocator, input_name);
  ORT(ALLOCATOR_FREE, (void *, void *), allocator, output_name);
  ORT_RELEASE(RELEASE_VALUE, input);
  ORT_RELEASE(RELEASE_MEMORY_INFO, memory);
  ORT_RELEASE(RELEASE_SESSION, session);
  ORT_RELEASE(RELEASE_SESSION_OPTIONS, options);
  ORT_RELEASE(RELEASE_ENV, env);
  return 0;
}
