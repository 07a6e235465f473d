// An app in C++ that measures runs of its own, and sends its reports by itself.
//
// app FOLDER
#include "epwatch.hpp"
#include <cstdio>

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  EpwConfig config = epwatch::config("com.example.game", "http://127.0.0.1:1", "demo-key", argv[1]);
  config.sends_by_host = 1;
  config.has_consent = 1;
  const epwatch::Watch watch(config);
  {
    const auto observed = watch.observe(epwatch::model("npc", "1"));
    for (int i = 0; i < 10; i++) observed.measure([] {});
  }
  watch.seal();
  EpwUpload upload{};
  while (epw_next_upload(watch.handle(), &upload) == EPW_STATUS_OK) {
    const auto path = epwatch::copied(
        [&](char *b, std::size_t c, std::size_t *n) { return epw_upload_path(upload, b, c, n); });
    const auto body = epwatch::copied(
        [&](char *b, std::size_t c, std::size_t *n) { return epw_upload_body(upload, b, c, n); });
    std::printf("POST %s %zu\n", path.c_str(), body.size());
    // Here the app's HTTP client sends it. This one has no network.
    epwatch::check(epw_upload_failed(upload, 0, 0, epwatch::text("no network")));
  }
  return 0;
}
