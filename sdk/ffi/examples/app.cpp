// An app in C++ that measures runs of its own, and sends its reports by itself.
//
// app FOLDER
#include "epwatch.h"
#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

EpwText text(const std::string &s) { return EpwText{s.data(), s.size()}; }

// Reads a text that epwatch returns by copy.
template <typename Call> std::string copied(Call call) {
  std::size_t length = 0;
  call(nullptr, 0, &length);
  std::string whole(length, '\0');
  call(&whole[0], whole.size(), &length);
  return whole;
}

void check(EpwStatus status) {
  if (status == EPW_STATUS_OK) return;
  throw std::runtime_error(
      copied([](char *b, std::size_t c, std::size_t *l) { return epw_last_error(b, c, l); }));
}

// A session that is closed with its scope.
class Observed {
public:
  Observed(EpwWatch watch, const std::string &id, const std::string &version) {
    EpwModel model{};
    model.size = sizeof model;
    model.id = text(id);
    model.version = text(version);
    check(epw_observe(watch, nullptr, nullptr, &model, &session_));
  }
  Observed(const Observed &) = delete;
  Observed &operator=(const Observed &) = delete;
  ~Observed() { epw_session_close(session_); }

  template <typename Run> void measure(Run run) const {
    const auto began = epw_now();
    run();
    epw_record(session_, began, epw_now() - began);
  }

private:
  EpwSession session_{};
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  EpwConfig config{};
  config.size = sizeof config;
  const std::string app = "com.example.game", endpoint = "http://127.0.0.1:1", key = "demo-key", folder = argv[1];
  config.app_id = text(app);
  config.endpoint = text(endpoint);
  config.app_key = text(key);
  config.folder = text(folder);
  config.sends_by_host = 1;
  config.has_consent = 1;
  EpwWatch watch{};
  check(epw_start(&config, &watch));
  {
    const Observed observed(watch, "npc", "1");
    for (int i = 0; i < 10; i++) observed.measure([] {});
  }
  check(epw_seal(watch));
  EpwUpload upload{};
  while (epw_next_upload(watch, &upload) == EPW_STATUS_OK) {
    const auto path =
        copied([&](char *b, std::size_t c, std::size_t *l) { return epw_upload_path(upload, b, c, l); });
    const auto body =
        copied([&](char *b, std::size_t c, std::size_t *l) { return epw_upload_body(upload, b, c, l); });
    std::printf("POST %s %zu\n", path.c_str(), body.size());
    // Here the app's HTTP client sends it. This one has no network.
    check(epw_upload_failed(upload, 0, 0, text("no network")));
  }
  check(epw_stop(watch, 5000));
  return 0;
}
