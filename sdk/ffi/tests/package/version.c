#include <epwatch.h>

int main(void) { return epw_version() != EPW_VERSION; }
