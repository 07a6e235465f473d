/* Nanoseconds of a run's calls, next to the two clock reads that they need: FOLDER. Each figure is the median of its
   rounds, and the calls take turns in a round, so that a busy machine slows all of them. */
#include "epwatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 201, COLD_ROUNDS = 2, RUNS = 10000, CALLS = 4 };

static EpwSession observed;
static EpwRun batch[RUNS];
static volatile uint64_t sink;

static EpwText text(const char *s) {
  EpwText t = {s, strlen(s)};
  return t;
}

static void check(EpwStatus status) {
  if (status != EPW_STATUS_OK) {
    fprintf(stderr, "status %d\n", (int)status);
    exit(1);
  }
}

static void clock_pairs(void) {
  for (int run = 0; run < RUNS; run++) {
    uint64_t began = epw_now();
    sink += epw_now() - began;
  }
}

static void records(void) {
  for (int run = 0; run < RUNS; run++) check(epw_record(observed, 1000000000, 8000000));
}

static void whole_runs(void) {
  for (int run = 0; run < RUNS; run++) {
    uint64_t began = epw_now();
    check(epw_record(observed, began, epw_now() - began));
  }
}

static void batches(void) { check(epw_record_all(observed, batch, RUNS)); }

static int in_order(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*work)(void);
  } calls[CALLS] = {
      {"clock_pair", clock_pairs}, {"record", records}, {"clock_pair_and_record", whole_runs}, {"record_all", batches}};
  static double times[CALLS][ROUNDS];
  if (argc != 2) return 2;
  EpwConfig config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.app_id = text("com.example.camera");
  config.endpoint = text("http://127.0.0.1:1");
  config.app_key = text("key");
  config.folder = text(argv[1]);
  config.has_consent = 1;
  EpwWatch watch = {0};
  check(epw_start(&config, &watch));
  EpwModel model;
  memset(&model, 0, sizeof model);
  model.size = sizeof model;
  model.id = text("segmenter");
  model.version = text("3");
  check(epw_observe(watch, NULL, NULL, &model, &observed));
  for (int run = 0; run < RUNS; run++) {
    batch[run].began_ns = epw_now();
    batch[run].latency_ns = 8000000;
  }

  for (int round = -COLD_ROUNDS; round < ROUNDS; round++) {
    for (int call = 0; call < CALLS; call++) {
      uint64_t began = epw_now();
      calls[call].work();
      double each = (double)(epw_now() - began) / RUNS;
      if (round >= 0) times[call][round] = each;
    }
  }
  for (int call = 0; call < CALLS; call++) {
    qsort(times[call], ROUNDS, sizeof times[call][0], in_order);
    printf("%s_ns %.1f\n", calls[call].name, times[call][ROUNDS / 2]);
  }
  epw_session_close(observed);
  check(epw_stop(watch, 60000));
  return 0;
}
