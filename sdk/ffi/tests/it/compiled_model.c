/* The question before a compiled model is loaded: prints an answer a line. FOLDER MODEL QNN_SDK */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS(call, expected)                             \
  if ((call) != EPW_STATUS_##expected) {               \
    fprintf(stderr, "line %d\n", __LINE__);            \
    exit(1);                                           \
  }

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static EpwModel model_of(const char *file, const char *soc_model, EpwText *ep) {
  EpwModel model;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  model.requested_eps = ep;
  model.n_requested_eps = 1;
  model.soc_model = text(soc_model);
  model.model_file = text(file);
  return model;
}

int main(int argc, char **argv) {
  static char json[65536];
  size_t length = 0;
  EpwWatch watch;
  EpwConfig config;
  EpwModel model;
  EpwSession session;
  EpwAssignment assignment;
  EpwCompatibility answer = EPW_COMPATIBILITY_UNKNOWN;
  const char *wrong[3];
  int i;
  EpwText npu = text("QNNExecutionProvider"), other = text("OpenVINOExecutionProvider");
  if (argc != 4) return 2;
  /* Not there, a folder, not a regular file. */
  wrong[0] = "/nowhere.onnx";
  wrong[1] = argv[1];
  wrong[2] = "/dev/zero";
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("app");
  config.endpoint = text("http://127.0.0.1:1");
  config.app_key = text("key");
  config.folder = text(argv[1]);
  config.qnn_sdk_version = text(argv[3]);
  config.has_consent = 1;
  IS(epw_start(&config, &watch), OK);

  model = model_of(argv[2], "57", &npu);
  IS(epw_compatibility(watch, &model, &answer), OK);
  printf("%d\n", (int)answer);
  model = model_of(argv[2], "68", &npu);
  IS(epw_compatibility(watch, &model, &answer), OK);
  printf("%d\n", (int)answer);
  /* Of another EP: not a compiled model of this session. */
  model = model_of(argv[2], "68", &other);
  IS(epw_compatibility(watch, &model, &answer), OK);
  printf("%d\n", (int)answer);
  /* A wrong path is no answer. */
  for (i = 0; i < 3; i++) {
    model = model_of(wrong[i], "68", &npu);
    IS(epw_compatibility(watch, &model, &answer), INVALID_ARGUMENT);
  }
  model = model_of(argv[2], "68", NULL);
  model.n_requested_eps = 0;
  IS(epw_compatibility(watch, &model, &answer), INVALID_ARGUMENT);
  model = model_of("", "68", &npu);
  IS(epw_compatibility(watch, &model, &answer), INVALID_ARGUMENT);
  model = model_of(argv[2], "68", &npu);
  IS(epw_compatibility(watch, &model, NULL), INVALID_ARGUMENT);
  IS(epw_compatibility(watch, NULL, &answer), INVALID_ARGUMENT);

  /* What only a session needs is not read, and a log is left for the session. */
  model.id = text("");
  model.side_car = text("no JSON");
  model.log.id = 77;
  IS(epw_compatibility(watch, &model, &answer), OK);
  printf("%d\n", (int)answer);
  model = model_of(argv[2], "68", &npu);

  /* The session that is made nevertheless has the reason. */
  memset(&assignment, 0, sizeof assignment);
  assignment.size = sizeof assignment;
  assignment.runtime = text("1.31.1");
  IS(epw_observe_assignment(watch, &model, &assignment, &session), OK);
  IS(epw_explain_session(session, json, sizeof json, &length), OK);
  printf("%.*s\n", (int)length, json);
  IS(epw_session_close(session), OK);
  IS(epw_stop(watch, 300000), OK);
  IS(epw_compatibility(watch, &model, &answer), CLOSED);
  return 0;
}
