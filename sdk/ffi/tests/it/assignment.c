/* Placements that the host has read: prints what each session explains. FOLDER */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                  \
  if ((call) != EPW_STATUS_OK) {                                  \
    fprintf(stderr, "line %d\n", __LINE__);                       \
    exit(1);                                                      \
  }

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static EpwNode node(const char *name, const char *op_type, const char *ep, uint64_t subgraph) {
  EpwNode n = {text(name), text(op_type), {NULL, 0}, text(ep), subgraph};
  return n;
}

static EpwStatus observe(EpwWatch watch, const EpwNode *nodes, size_t n_nodes, const char *version, EpwSession *session) {
  EpwModel model;
  EpwAssignment assignment;
  EpwText npu = text("QNNExecutionProvider");
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  model.requested_eps = &npu;
  model.n_requested_eps = 1;
  memset(&assignment, 0, sizeof assignment);
  assignment.size = sizeof assignment;
  assignment.runtime = text(version);
  assignment.nodes = nodes;
  assignment.n_nodes = n_nodes;
  return epw_observe_assignment(watch, &model, &assignment, session);
}

/* A session by a policy, which names no EP. */
static void explain_policy(EpwWatch watch, const EpwNode *nodes, size_t n_nodes) {
  static char json[65536];
  size_t length = 0;
  EpwSession session;
  EpwModel model;
  EpwAssignment assignment;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  model.selection_policy = text("OrtExecutionProviderDevicePolicy_PREFER_NPU");
  model.device_type = text("NPU");
  memset(&assignment, 0, sizeof assignment);
  assignment.size = sizeof assignment;
  assignment.runtime = text("1.31.1");
  assignment.nodes = nodes;
  assignment.n_nodes = n_nodes;
  OK(epw_observe_assignment(watch, &model, &assignment, &session));
  OK(epw_explain_session(session, json, sizeof json, &length));
  printf("%.*s\n", (int)length, json);
  OK(epw_session_close(session));
}

static void refuse(EpwWatch watch, const EpwNode *nodes, size_t n_nodes, const char *version) {
  EpwSession session;
  if (observe(watch, nodes, n_nodes, version, &session) != EPW_STATUS_INVALID_ARGUMENT) exit(1);
}

static void explain(EpwWatch watch, const EpwNode *nodes, size_t n_nodes, const char *version) {
  static char json[65536];
  size_t length = 0;
  EpwSession session;
  OK(observe(watch, nodes, n_nodes, version, &session));
  OK(epw_explain_session(session, json, sizeof json, &length));
  printf("%.*s\n", (int)length, json);
  OK(epw_session_close(session));
}

int main(int argc, char **argv) {
  EpwWatch watch;
  EpwConfig config;
  EpwNode nodes[6];
  if (argc != 2) return 2;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("app");
  config.endpoint = text("http://127.0.0.1:1");
  config.app_key = text("key");
  config.folder = text(argv[1]);
  OK(epw_start(&config, &watch));
  nodes[0] = node("q", "QuantizeLinear", "CPUExecutionProvider", 0);
  nodes[1] = node("a", "Conv", "QNNExecutionProvider", 1);
  nodes[2] = node("b", "Conv", "QNNExecutionProvider", 1);
  nodes[3] = node("fc", "Gemm", "CPUExecutionProvider", 2);
  /* Two subgraphs of one EP that follow each other. */
  nodes[4] = node("c", "Conv", "QNNExecutionProvider", 3);
  nodes[5] = node("d", "Conv", "QNNExecutionProvider", 4);
  explain_policy(watch, nodes, 6);
  explain_policy(watch, nodes, 1);
  explain(watch, nodes, 6, "1.31.1");
  /* A graph without nodes is no missing list. */
  explain(watch, nodes, 0, "1.31.1");
  explain(watch, NULL, 0, "1.31.1");
  explain(watch, NULL, 0, "1.23.2");
  explain(watch, NULL, 0, "");
  /* Another runtime, whose CPU has a name of its own. */
  nodes[1].ep = text("TfLiteQnnDelegate");
  nodes[3].ep = text("CPU");
  explain(watch, nodes + 1, 3, "LiteRT 2.3.0");
  /* ONNX Runtime has no EP of this name, so the version is another runtime's. */
  refuse(watch, nodes + 1, 3, "2.3.0");
  refuse(watch, nodes + 1, 3, "");
  OK(epw_stop(watch, 300000));
  return 0;
}
