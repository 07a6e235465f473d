/* Two children of a process that has started the SDK: each call with a handle of before says so, and an SDK of their
   own works.
   ENDPOINT FOLDER */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void is(EpwStatus got, EpwStatus expected, int line) {
  if (got != expected) {
    fprintf(stderr, "line %d: %d\n", line, (int)got);
    _exit(1);
  }
}
#define OK(call) is((call), EPW_STATUS_OK, __LINE__)

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static EpwWatch start(char **argv) {
  EpwConfig config;
  EpwWatch watch;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text(argv[1]);
  config.app_key = text("demo-key");
  config.folder = text(argv[2]);
  config.report_interval_ms = 3600 * 1000;
  config.has_consent = 1;
  OK(epw_start(&config, &watch));
  return watch;
}

static EpwSession observe(EpwWatch watch) {
  EpwModel model;
  EpwSession session;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  OK(epw_observe(watch, NULL, NULL, &model, &session));
  return session;
}

static void run(EpwSession session, int n) {
  while (n-- > 0) OK(epw_record(session, epw_now(), 8000));
}

int main(int argc, char **argv) {
  EpwWatch watch;
  EpwSession session;
  int child;
  if (argc != 3) return 2;
  watch = start(argv);
  session = observe(watch);
  run(session, 10);
  OK(epw_flush(watch, 300000));
  for (child = 0; child < 2; child++) {
    int status = 1;
    pid_t pid = fork();
    if (pid == 0) {
      EpwWatch own;
      EpwSession session_of_child;
      char text_of_child[4096];
      size_t length;
      is(epw_record(session, epw_now(), 8000), EPW_STATUS_FORKED, __LINE__);
      is(epw_record_error(session, 6), EPW_STATUS_FORKED, __LINE__);
      is(epw_explain(watch, text_of_child, sizeof text_of_child, &length), EPW_STATUS_FORKED, __LINE__);
      is(epw_set_network(watch, 1), EPW_STATUS_FORKED, __LINE__);
      is(epw_seal(watch), EPW_STATUS_FORKED, __LINE__);
      is(epw_flush(watch, 300000), EPW_STATUS_FORKED, __LINE__);
      is(epw_session_close(session), EPW_STATUS_FORKED, __LINE__);
      is(epw_stop(watch, 300000), EPW_STATUS_FORKED, __LINE__);
      own = start(argv);
      session_of_child = observe(own);
      run(session_of_child, 20);
      OK(epw_flush(own, 300000));
      OK(epw_stop(own, 300000));
      _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return 3;
  }
  run(session, 7);
  OK(epw_flush(watch, 300000));
  OK(epw_stop(watch, 300000));
  puts("all arrived");
  return 0;
}
