/* A folder that cannot be used: no call says that all is well. FOLDER */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

/* The status is FOLDER, and the sentence names the folder. */
static void is_lost(EpwStatus got, int line) {
  char why[1024] = "";
  size_t length = 0;
  epw_last_error(why, sizeof why - 1, &length);
  if (got != EPW_STATUS_FOLDER || strstr(why, folder) == NULL) {
    fprintf(stderr, "line %d: %d %s\n", line, (int)got, why);
    exit(1);
  }
}
#define IS_LOST(call) is_lost((call), __LINE__)

int main(int argc, char **argv) {
  EpwConfig config;
  EpwModel model;
  EpwWatch watch;
  EpwSession session;
  if (argc != 2) return 2;
  folder = argv[1];
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text("http://127.0.0.1:1");
  config.app_key = text("demo-key");
  config.folder = text(folder);
  config.has_consent = 1;
  config.report_interval_ms = 3600 * 1000;
  if (epw_start(&config, &watch) != EPW_STATUS_OK) return 3;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  if (epw_observe(watch, NULL, NULL, &model, &session) != EPW_STATUS_OK) return 4;
  if (epw_record(session, epw_now(), 8000) != EPW_STATUS_OK) return 5;
  IS_LOST(epw_seal(watch));
  IS_LOST(epw_flush(watch, 300000));
  IS_LOST(epw_stop(watch, 300000));
  puts("told");
  return 0;
}
