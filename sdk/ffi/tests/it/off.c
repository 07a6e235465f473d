/* The answer to the first upload turns recording off: nothing is recorded after it. ENDPOINT FOLDER PUBLIC_KEY */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void is_ok(EpwStatus got, int line) {
  if (got != EPW_STATUS_OK) {
    fprintf(stderr, "line %d: %d\n", line, (int)got);
    exit(1);
  }
}
#define OK(call) is_ok((call), __LINE__)

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static void run(EpwSession session, int n) {
  while (n-- > 0) OK(epw_record(session, epw_now(), 8000));
}

int main(int argc, char **argv) {
  static char json[65536];
  EpwConfig config;
  EpwModel model;
  EpwWatch watch;
  EpwSession session, later;
  EpwRun runs[] = {{1, 8000}, {2, 8000}};
  size_t length = 0;
  if (argc != 4) return 2;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text(argv[1]);
  config.app_key = text("demo-key");
  config.folder = text(argv[2]);
  config.directive_key_id = text("ops");
  config.directive_key = text(argv[3]);
  config.report_interval_ms = 3600 * 1000;
  config.has_consent = 1;
  OK(epw_start(&config, &watch));
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  OK(epw_observe(watch, NULL, NULL, &model, &session));
  run(session, 10);
  OK(epw_flush(watch, 30000));

  run(session, 10);
  OK(epw_record_all(session, runs, 2));
  OK(epw_record_error(session, 2));
  OK(epw_start_failed(watch, NULL, &model, 1, text("no")));
  OK(epw_observe(watch, NULL, NULL, &model, &later));
  run(later, 10);
  OK(epw_flush(watch, 30000));
  OK(epw_explain(watch, json, sizeof json, &length));
  printf("%.*s\n", (int)length, json);
  OK(epw_session_close(later));
  OK(epw_session_close(session));
  OK(epw_stop(watch, 5000));
  return 0;
}
