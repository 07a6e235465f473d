/* Children of a process that has started the SDK, forked while another thread makes and closes handles: the parent's
   handles work there, and belong to a stream of the child's own.
   ENDPOINT FOLDER */
#include "epwatch.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_CHILDREN 12

static void is(EpwStatus got, EpwStatus expected, int line) {
  if (got != expected) {
    fprintf(stderr, "line %d: %d\n", line, (int)got);
    _exit(1);
  }
}
#define IS(call, status) is((call), EPW_STATUS_##status, __LINE__)

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static EpwWatch start(char **argv, int has_consent) {
  EpwConfig config;
  EpwWatch watch;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text(argv[1]);
  config.app_key = text("demo-key");
  config.folder = text(argv[2]);
  config.report_interval_ms = 3600 * 1000;
  config.has_consent = has_consent;
  IS(epw_start(&config, &watch), OK);
  return watch;
}

/* By a list of nodes: epw_observe looks for ONNX Runtime with dlopen, and glibc's does not survive a fork in its midst. */
static EpwSession observe(EpwWatch watch) {
  EpwModel model;
  EpwAssignment read;
  EpwSession session;
  memset(&read, 0, sizeof read);
  read.size = sizeof read;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  IS(epw_observe_assignment(watch, &model, &read, &session), OK);
  return session;
}

static void run(EpwSession session, int n) {
  while (n-- > 0) IS(epw_record(session, epw_now(), 8000), OK);
}

static volatile int is_over;

/* Holds a lock of the tables at nearly every moment. */
static void *make_handles(void *quiet) {
  EpwSession closed = observe(*(EpwWatch *)quiet);
  IS(epw_session_close(closed), OK);
  while (!is_over) {
    EpwSession session = observe(*(EpwWatch *)quiet);
    epw_record(closed, epw_now(), 1);
    IS(epw_session_close(session), OK);
  }
  return NULL;
}

static void in_child(EpwWatch watch, EpwSession session, char **argv) {
  EpwWatch second;
  EpwSession own;
  size_t length;
  alarm(300);
  run(session, 20);
  IS(epw_record_error(session, 6), OK);
  IS(epw_explain_session(session, NULL, 0, &length), OK);
  IS(epw_set_network(watch, 1), OK);
  own = observe(watch);
  run(own, 5);
  IS(epw_session_close(own), OK);
  IS(epw_session_close(own), CLOSED);
  /* The parent's, which stays open there. */
  IS(epw_session_close(session), OK);
  IS(epw_session_close(session), CLOSED);
  IS(epw_record(session, epw_now(), 8000), CLOSED);
  IS(epw_flush(watch, 300000), OK);
  IS(epw_stop(watch, 300000), OK);
  IS(epw_stop(watch, 300000), CLOSED);
  second = start(argv, 0);
  IS(epw_stop(second, 300000), OK);
  _exit(0);
}

int main(int argc, char **argv) {
  EpwWatch watch, quiet;
  EpwSession session;
  pthread_t thread;
  int child;
  if (argc != 3) return 2;
  watch = start(argv, 1);
  quiet = start(argv, 0);
  session = observe(watch);
  run(session, 10);
  IS(epw_flush(watch, 300000), OK);
  pthread_create(&thread, NULL, make_handles, &quiet);
  for (child = 0; child < N_CHILDREN; child++) {
    int status = 1;
    pid_t pid = fork();
    if (pid == 0) in_child(watch, session, argv);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
      fprintf(stderr, "child %d: status %d\n", child, status);
      return 3;
    }
  }
  is_over = 1;
  pthread_join(thread, NULL);
  run(session, 7);
  IS(epw_flush(watch, 300000), OK);
  IS(epw_stop(watch, 300000), OK);
  puts("all arrived");
  return 0;
}
