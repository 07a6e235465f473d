/* Everything that a caller can get wrong. Each call has its status, and the process ends by itself. */
#include "epwatch.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_THREADS 8
#define N_RUNS 25000

static void is(EpwStatus got, EpwStatus expected, int line) {
  if (got != expected) {
    fprintf(stderr, "line %d: %d instead of %d\n", line, (int)got, (int)expected);
    exit(1);
  }
}
#define IS(call, status) is((call), EPW_STATUS_##status, __LINE__)

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static void *record(void *session) {
  int i;
  for (i = 0; i < N_RUNS; i++)
    if (epw_record(*(EpwSession *)session, epw_now(), 8000) != EPW_STATUS_OK) return session;
  return NULL;
}

static void *record_until_closed(void *session) {
  while (epw_record(*(EpwSession *)session, epw_now(), 8000) == EPW_STATUS_OK) {}
  return NULL;
}

int main(int argc, char **argv) {
  struct { EpwConfig config; char later[16]; } newer;
  EpwConfig config;
  EpwModel model;
  EpwWatch watch = {0}, second = {0}, none = {0};
  EpwSession session = {0}, other = {0};
  EpwPlan plan = {0};
  EpwUpload upload = {0};
  EpwText reason = text("no_such_reason"), bad = {"\xff\xfe", 2}, null_text = {NULL, 5};
  EpwText known = text("no_ep_device"), npu;
  EpwRun run = {1, 2};
  EpwLabel label;
  EpwAssignment assignment;
  EpwNode nodes[2];
  EpwLog log = {0};
  EpwGolden golden;
  EpwTensor tensor;
  EpwOutputs outputs;
  EpwSelfTest test = {0};
  EpwTested tested;
  int64_t dims[] = {2, 2};
  uint8_t elements[16] = {0};
  pthread_t threads[N_THREADS];
  size_t length = 0;
  char small[4];
  void *failed;
  int use_npu, i;
  if (argc != 3) return 2;

  IS(epw_start(NULL, &watch), INVALID_ARGUMENT);
  memset(&config, 0, sizeof config);
  IS(epw_start(&config, &watch), STRUCT_SIZE);
  config.size = sizeof config;
  IS(epw_start(&config, &watch), CONFIG);
  IS(epw_last_error(small, sizeof small, &length), BUFFER_TOO_SMALL);
  if (length <= sizeof small) return 1;
  IS(epw_last_error(NULL, 0, &length), OK);
  if (epw_version() != EPW_VERSION) return 1;
  IS(epw_last_error(NULL, 0, NULL), INVALID_ARGUMENT);
  config.app_id = text("app");
  config.endpoint = text(argv[2]);
  config.app_key = text("demo-key");
  config.folder = text(argv[1]);
  config.app_version = bad;
  IS(epw_start(&config, &watch), NOT_UTF8);
  config.app_version = null_text;
  IS(epw_start(&config, &watch), INVALID_ARGUMENT);
  config.app_version = text("1");
  config.directive_key_id = text("ops");
  IS(epw_start(&config, &watch), CONFIG);
  config.directive_key_id.length = 0;
  config.trusted_roots = 3;
  IS(epw_start(&config, &watch), CONFIG);
  /* No root at all. */
  config.trusted_roots = 2;
  IS(epw_start(&config, &watch), CONFIG);
  config.trusted_roots = 1;
  config.root_certificate = text("no PEM");
  IS(epw_start(&config, &watch), CONFIG);
  config.root_certificate = text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n");
  config.n_rollout_labels = 1;
  IS(epw_start(&config, &watch), INVALID_ARGUMENT);
  label.key = text("ring");
  label.value = text("canary");
  config.rollout_labels = &label;
  config.upload_interval_ms = 3600 * 1000;
  config.unmetered_bytes_per_day = 1 << 20;
  config.reads_thermal_zones = 1;
  config.report_interval_ms = 3600 * 1000;
  config.has_consent = 1;
  /* A caller compiled with a later header. */
  memset(&newer, 0, sizeof newer);
  newer.config = config;
  newer.config.size = sizeof newer;
  newer.later[3] = 1;
  IS(epw_start(&newer.config, &watch), STRUCT_SIZE);
  newer.later[3] = 0;
  IS(epw_start(&newer.config, &watch), OK);
  /* Without a place for the handle nothing is left open: more often than there are handles. */
  for (i = 0; i < 4100; i++) IS(epw_start(&config, NULL), INVALID_ARGUMENT);
  /* Twice in a process, on one folder. */
  IS(epw_start(&config, &second), OK);
  IS(epw_stop(second, 5000), OK);
  IS(epw_stop(second, 5000), CLOSED);

  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  IS(epw_observe(watch, NULL, NULL, &model, &session), CONFIG);
  model.id = text("m");
  model.version = text("1");
  model.sha256 = text("12");
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.sha256.length = 0;
  model.reasons = &reason;
  model.n_reasons = 1;
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.reasons = &known;
  model.n_requested_eps = 3;
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.n_requested_eps = 0;
  model.plan.id = 77;
  IS(epw_observe(watch, NULL, NULL, &model, &session), CLOSED);
  model.plan.id = 0;
  IS(epw_prepare_options(NULL, NULL), ORT_NOT_FOUND);
  IS(epw_capture_log(NULL, NULL, &log), ORT_NOT_FOUND);
  IS(epw_capture_log(NULL, NULL, NULL), INVALID_ARGUMENT);
  IS(epw_log_close(log), CLOSED);
  model.log.id = watch.id;
  IS(epw_observe(watch, NULL, NULL, &model, &session), CLOSED);
  model.log.id = 0;
  model.side_car = text("{\"total_macs\": -1}");
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.side_car = null_text;
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.side_car.data = argv[1];
  model.side_car.length = SIZE_MAX;
  IS(epw_observe(watch, NULL, NULL, &model, &session), INVALID_ARGUMENT);
  model.side_car.length = 0;
  IS(epw_observe(none, NULL, NULL, &model, &session), CLOSED);
  for (i = 0; i < 4100; i++) {
    IS(epw_observe(watch, NULL, NULL, &model, NULL), INVALID_ARGUMENT);
    IS(epw_plan(watch, &model, 0, NULL), INVALID_ARGUMENT);
  }
  IS(epw_next_upload(watch, NULL), INVALID_ARGUMENT);
  IS(epw_preflight(watch, NULL, NULL), INVALID_ARGUMENT);
  IS(epw_observe(watch, NULL, NULL, &model, &session), OK);

  memset(&assignment, 0, sizeof assignment);
  memset(nodes, 0, sizeof nodes);
  IS(epw_observe_assignment(watch, &model, &assignment, &other), STRUCT_SIZE);
  assignment.size = sizeof assignment;
  IS(epw_observe_assignment(watch, &model, NULL, &other), INVALID_ARGUMENT);
  IS(epw_observe_assignment(watch, NULL, &assignment, &other), INVALID_ARGUMENT);
  IS(epw_observe_assignment(watch, &model, &assignment, NULL), INVALID_ARGUMENT);
  IS(epw_observe_assignment(none, &model, &assignment, &other), CLOSED);
  assignment.n_nodes = 2;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  assignment.nodes = nodes;
  assignment.n_nodes = 1000001;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  assignment.n_nodes = SIZE_MAX;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  assignment.n_nodes = 2;
  /* Without an EP. */
  nodes[0].ep = text("CPUExecutionProvider");
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  nodes[1].ep = nodes[0].ep;
  nodes[1].name = bad;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), NOT_UTF8);
  nodes[1].name = null_text;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  nodes[1].name.data = argv[1];
  nodes[1].name.length = SIZE_MAX;
  nodes[0].name = nodes[1].name;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), INVALID_ARGUMENT);
  nodes[0].name = nodes[1].name = text("n");
  assignment.runtime = bad;
  IS(epw_observe_assignment(watch, &model, &assignment, &other), NOT_UTF8);
  assignment.runtime = text("1.31.1");
  IS(epw_observe_assignment(watch, &model, &assignment, &other), OK);
  IS(epw_session_close(other), OK);

  memset(&golden, 0, sizeof golden);
  memset(&tensor, 0, sizeof tensor);
  memset(&outputs, 0, sizeof outputs);
  IS(epw_self_test_begin(session, &golden, &test), STRUCT_SIZE);
  golden.size = sizeof golden;
  IS(epw_self_test_begin(session, NULL, &test), INVALID_ARGUMENT);
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  golden.id = text("golden");
  golden.inputs = &tensor;
  golden.n_inputs = 65;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  golden.n_inputs = 1;
  /* Without a name, of texts, of too few bytes, below 0, too many dimensions. */
  tensor.data = elements;
  tensor.n_bytes = sizeof elements;
  tensor.dims = dims;
  tensor.n_dims = 2;
  tensor.element_type = 1;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.name = text("x");
  tensor.element_type = 8;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.element_type = INT64_MAX;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.element_type = 1;
  tensor.n_bytes = 15;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.n_bytes = SIZE_MAX;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.n_bytes = sizeof elements;
  dims[1] = -2;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  dims[1] = INT64_MAX;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  dims[1] = 2;
  tensor.n_dims = SIZE_MAX;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  tensor.n_dims = 2;
  golden.tolerance = -1;
  IS(epw_self_test_begin(session, &golden, &test), INVALID_ARGUMENT);
  golden.tolerance = 0.5;
  IS(epw_self_test_begin(session, &golden, NULL), INVALID_ARGUMENT);
  /* No node is on an NPU. */
  IS(epw_self_test_begin(session, &golden, &test), NONE);
  other.id = watch.id;
  IS(epw_self_test_begin(other, &golden, &test), CLOSED);
  IS(epw_self_test_end(test, &outputs, &tested), STRUCT_SIZE);
  outputs.size = sizeof outputs;
  tested.size = sizeof tested;
  IS(epw_self_test_end(test, &outputs, &tested), CLOSED);
  tested.size = 0;
  IS(epw_self_test_end(test, &outputs, &tested), STRUCT_SIZE);
  outputs.n_cpu = 1;
  IS(epw_self_test_end(test, &outputs, NULL), INVALID_ARGUMENT);
  IS(epw_self_test_close(test), CLOSED);
  /* A session that asked for the NPU, and whose placement is not known. Too large an output ends the test, too. */
  npu = text("QNNExecutionProvider");
  model.requested_eps = &npu;
  model.n_requested_eps = 1;
  IS(epw_observe(watch, NULL, NULL, &model, &other), OK);
  model.n_requested_eps = 0;
  IS(epw_self_test_begin(other, &golden, &test), OK);
  outputs.n_cpu = 0;
  outputs.npu = &tensor;
  outputs.n_npu = 1;
  tensor.n_bytes = (64u << 20) + 1;
  IS(epw_self_test_end(test, &outputs, &tested), STRUCT_SIZE);
  /* A caller of an older header gets the fields of that header. */
  tested.size = offsetof(EpwTested, error_code);
  tested.error_code = 77;
  tested.top1_equal = 77;
  IS(epw_self_test_end(test, &outputs, &tested), OK);
  if (tested.error_code != 77 || tested.top1_equal != -1 || tested.size != offsetof(EpwTested, error_code)) return 1;
  IS(epw_self_test_end(test, &outputs, &tested), CLOSED);
  tensor.n_bytes = sizeof elements;
  golden.id = text("another");
  IS(epw_self_test_begin(other, &golden, &test), OK);
  IS(epw_self_test_close(test), OK);
  IS(epw_self_test_close(test), CLOSED);
  IS(epw_session_close(other), OK);

  IS(epw_start_failed(watch, NULL, &model, 1, text("no")), OK);
  IS(epw_plan(watch, &model, 1000, &plan), OK);
  IS(epw_plan_use_npu(plan, &use_npu), OK);
  IS(epw_plan_use_npu(plan, NULL), INVALID_ARGUMENT);
  IS(epw_plan_close(plan), OK);
  IS(epw_plan_use_npu(plan, &use_npu), CLOSED);
  IS(epw_upload_failed(upload, 0, 0, text("")), CLOSED);
  /* A handle of another kind. */
  other.id = watch.id;
  IS(epw_record(other, 1, 2), CLOSED);
  IS(epw_record_shape(session, 1, 2, bad), NOT_UTF8);
  IS(epw_record_all(session, NULL, 1), INVALID_ARGUMENT);
  IS(epw_record_all(session, &run, 1), OK);
  IS(epw_record_shape(session, 1, 2, text("x:1")), OK);
  IS(epw_set_conditions(watch, 99, 0, text("burst")), INVALID_ARGUMENT);
  IS(epw_set_conditions(watch, INT32_MAX, 0, text("burst")), INVALID_ARGUMENT);
  IS(epw_set_conditions(watch, -2, 0, text("burst")), INVALID_ARGUMENT);
  IS(epw_set_conditions(watch, 6, -5, text("burst")), INVALID_ARGUMENT);
  IS(epw_set_conditions(watch, -1, -1, text("burst")), OK);
  IS(epw_set_network(watch, 42), INVALID_ARGUMENT);
  IS(epw_set_network(watch, 1), OK);
  IS(epw_record_error(session, -5), INVALID_ARGUMENT);
  IS(epw_record_error(session, 0), INVALID_ARGUMENT);
  IS(epw_record(session, UINT64_MAX / 2, UINT64_MAX / 2), OK);
  IS(epw_explain(watch, NULL, 0, &length), OK);

  for (i = 0; i < N_THREADS; i++) pthread_create(&threads[i], NULL, record, &session);
  for (i = 0; i < N_THREADS; i++) {
    pthread_join(threads[i], &failed);
    if (failed != NULL) return 1;
  }
  IS(epw_observe(watch, NULL, NULL, &model, &other), OK);
  for (i = 0; i < N_THREADS; i++) pthread_create(&threads[i], NULL, record_until_closed, &other);
  /* Closed while it is used. */
  while (epw_session_close(other) != EPW_STATUS_OK) {}
  for (i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
  IS(epw_session_close(session), OK);
  IS(epw_session_close(session), CLOSED);
  IS(epw_record(session, 1, 2), CLOSED);
  IS(epw_explain_session(session, NULL, 0, &length), CLOSED);
  IS(epw_flush(watch, 30000), OK);
  IS(epw_stop(watch, 5000), OK);
  IS(epw_set_consent(watch, 0), CLOSED);
  puts("all refused");
  return 0;
}
