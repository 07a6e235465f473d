/* A collector that is not there: on_health gets the problem. FOLDER */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void is(EpwStatus got, EpwStatus expected, int line) {
  if (got != expected) {
    fprintf(stderr, "line %d: %d\n", line, (int)got);
    exit(1);
  }
}
#define IS(call, expected) is((call), EPW_STATUS_##expected, __LINE__)

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

typedef struct Told {
  int times;
  char first[512];
} Told;

static void on_health(void *context, EpwText problem) {
  Told *told = context;
  if (told->times++ == 0 && problem.length < sizeof told->first) memcpy(told->first, problem.data, problem.length);
}

int main(int argc, char **argv) {
  static Told told;
  EpwConfig config;
  EpwModel model;
  EpwWatch watch;
  EpwSession session;
  char why[1024] = "";
  size_t length = 0;
  if (argc != 2) return 2;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text("http://127.0.0.1:1");
  config.app_key = text("demo-key");
  config.folder = text(argv[1]);
  config.has_consent = 1;
  config.report_interval_ms = 3600 * 1000;
  config.on_health = on_health;
  config.health_context = &told;
  IS(epw_start(&config, &watch), OK);
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  IS(epw_observe(watch, NULL, NULL, &model, &session), OK);
  IS(epw_record(session, epw_now(), 8000), OK);
  IS(epw_flush(watch, 300000), UPLOAD);
  /* With its cause: it was "failed to flush". */
  if (epw_last_error(why, sizeof why - 1, &length) != EPW_STATUS_OK || strstr(why, "refused") == NULL) {
    fprintf(stderr, "%s\n", why);
    return 3;
  }
  IS(epw_session_close(session), OK);
  IS(epw_stop(watch, 300000), OK);
  if (told.times == 0) return 1;
  printf("%s\n", told.first);
  return 0;
}
