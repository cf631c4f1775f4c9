/* libamd_smi.so for machines without a GPU: the calls that Lattice makes, with the structures of
   AMD's header of the release that AMDSMI_STATE names, answered from that text file.

     release 26                 first number of the version; 24 has the older structures, 27 the newer
     init 34                    amdsmi_init answers with this code
     hang 30                    every call waits for so many seconds first
     gpus 4                     how many cards there are
     gpu 0 temperature 61       of the card with index 0; `gpu *` is every card
     gpu 0 power error:7        the call answers with this code
     gpu 0 lost 1               every call about it answers "input or output error"

   The last line that fits is the one that holds. What has no line is not supported. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, IO = 12, NOT_INITIALIZED = 32 };
enum { MOST_CARDS = 64, LINE = 256 };

static int started;
static char socket_handle, cards[MOST_CARDS];

static FILE *state(void) {
  const char *path = getenv("AMDSMI_STATE");
  return path ? fopen(path, "r") : NULL;
}

static int setting(const char *name, int otherwise) {
  FILE *file = state();
  char line[LINE], word[32];
  int value, found = otherwise;
  if (!file) return otherwise;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "%31s %d", word, &value) == 2 && !strcmp(word, name)) found = value;
  fclose(file);
  return found;
}

static int fact(void *handle, const char *key, char *value) {
  FILE *file = state();
  char line[LINE], card[16], word[32], text[128];
  int index = (int)((char *)handle - cards), found = 0;
  if (!file) return 0;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "gpu %15s %31s %127[^\n]", card, word, text) == 3 && !strcmp(word, key) &&
        (card[0] == '*' || atoi(card) == index)) {
      strcpy(value, text);
      found = 1;
    }
  fclose(file);
  return found;
}

static int begin(void) {
  int hang = setting("hang", 0);
  if (hang) sleep((unsigned)hang);
  return started ? SUCCESS : NOT_INITIALIZED;
}

static int ask(void *handle, const char *key, char *value) {
  int code = begin();
  if (code) return code;
  if (fact(handle, "lost", value) && atoi(value)) return IO;
  if (!fact(handle, key, value)) return NOT_SUPPORTED;
  return strncmp(value, "error:", 6) ? SUCCESS : atoi(value + 6);
}

static int number(void *handle, const char *key, unsigned long long *into) {
  char value[128];
  int code = ask(handle, key, value);
  if (!code) *into = strtoull(value, NULL, 0);
  return code;
}

int amdsmi_init(uint64_t flags) {
  int hang = setting("hang", 0), code = setting("init", 0);
  if (flags != 2) return INVALID;
  if (hang) sleep((unsigned)hang);
  if (!code) started = 1;
  return code;
}

int amdsmi_shut_down(void) {
  started = 0;
  return SUCCESS;
}

int amdsmi_status_code_to_string(uint32_t code, const char **text) {
  switch (code) {
    case NOT_SUPPORTED: *text = "AMDSMI_STATUS_NOT_SUPPORTED: Feature not supported"; break;
    case IO: *text = "AMDSMI_STATUS_IO: I/O Error"; break;
    case 34: *text = "AMDSMI_STATUS_DRIVER_NOT_LOADED: Processor driver not loaded"; break;
    default: *text = "AMDSMI_STATUS_UNKNOWN_ERROR: An unknown error occurred";
  }
  return SUCCESS;
}

int amdsmi_get_lib_version(uint32_t version[64]) {
  version[0] = (uint32_t)setting("release", 26);
  return SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
  int code = begin();
  if (code) return code;
  *count = setting("gpus", 0) ? 1 : 0;
  if (handles && *count) handles[0] = &socket_handle;
  return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
  int there = setting("gpus", 0);
  if (socket != &socket_handle) return INVALID;
  *count = (uint32_t)(there < MOST_CARDS ? there : MOST_CARDS);
  for (uint32_t i = 0; handles && i < *count; i++) handles[i] = &cards[i];
  return SUCCESS;
}

int amdsmi_get_processor_type(void *handle, uint32_t *kind) {
  (void)handle;
  *kind = 1;
  return SUCCESS;
}

static int text(void *handle, const char *key, char *into, uint32_t size) {
  char value[128];
  int code = ask(handle, key, value);
  if (!code) snprintf(into, size, "%s", value);
  return code;
}

int amdsmi_get_gpu_device_uuid(void *handle, uint32_t *size, char *uuid) {
  return text(handle, "uuid", uuid, *size);
}

int amdsmi_get_gpu_asic_info(void *handle, char *market_name) {
  return text(handle, "name", market_name, 64);
}

int amdsmi_get_gpu_compute_partition(void *handle, char *into, uint32_t size) {
  return text(handle, "compute", into, size);
}

int amdsmi_get_gpu_memory_partition(void *handle, char *into, uint32_t size) {
  return text(handle, "memory_mode", into, size);
}

int amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bits) {
  char value[128];
  unsigned domain, bus, device, function;
  int code = ask(handle, "bdf", value);
  if (code) return code;
  if (sscanf(value, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return INVALID;
  *bits = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
  return SUCCESS;
}

int amdsmi_get_gpu_activity(void *handle, uint32_t usage[16]) {
  unsigned long long found = 0;
  int code = number(handle, "utilization", &found);
  usage[0] = (uint32_t)found;
  return code;
}

int amdsmi_get_gpu_memory_total(void *handle, uint32_t kind, uint64_t *bytes) {
  unsigned long long found = 0;
  int code = kind ? INVALID : number(handle, "memory_total", &found);
  *bytes = found;
  return code;
}

int amdsmi_get_gpu_memory_usage(void *handle, uint32_t kind, uint64_t *bytes) {
  unsigned long long found = 0;
  int code = kind ? INVALID : number(handle, "memory_used", &found);
  *bytes = found;
  return code;
}

int amdsmi_get_temp_metric(void *handle, uint32_t sensor, uint32_t metric, int64_t *celsius) {
  unsigned long long found = 0;
  int code = metric ? INVALID : number(handle, sensor ? "temperature" : "temperature_edge", &found);
  *celsius = (int64_t)found;
  return code;
}

int amdsmi_get_clock_info(void *handle, uint32_t kind, uint32_t clock[8]) {
  unsigned long long found = 0;
  int code = number(handle, kind == 0 ? "clock" : kind == 4 ? "clock_memory" : "other", &found);
  clock[0] = (uint32_t)found;
  return code;
}

struct power_24 {
  uint32_t current, average, gfx, soc, memory, limit, reserved[11];
};
struct power_26 {
  uint64_t socket;
  uint32_t current, average;
  uint64_t gfx, soc, memory;
  uint32_t limit;
  uint64_t reserved[18];
};

int amdsmi_get_power_info(void *handle, void *into) {
  unsigned long long found = 0;
  int code = number(handle, "power", &found);
  if (code) return code;
  if (setting("release", 26) < 26) {
    struct power_24 power = {.current = 0xFFFF, .average = (uint32_t)found, .gfx = 800};
    memcpy(into, &power, sizeof power);
  } else {
    struct power_26 power = {.socket = 0xFFFF, .current = (uint32_t)found, .average = 0xFFFF};
    memcpy(into, &power, sizeof power);
  }
  return SUCCESS;
}

int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, uint64_t cap[8]) {
  unsigned long long found = 0;
  int code = sensor ? INVALID : number(handle, "power_cap", &found);
  cap[0] = found;
  return code;
}

int amdsmi_get_energy_count(void *handle, uint64_t *count, float *resolution, uint64_t *stamp) {
  unsigned long long found = 0;
  int code = number(handle, "energy", &found);
  *count = found;
  *resolution = 15.3f;
  *stamp = 1;
  return code;
}

int amdsmi_get_gpu_pci_replay_counter(void *handle, uint64_t *counter) {
  unsigned long long found = 0;
  int code = number(handle, "pcie_replays", &found);
  *counter = found;
  return code;
}

/* The firmware's table up to the counters of throttling. Release 27 widened four fields. */
#define TABLE(name, wider)                                                                      \
  struct name {                                                                                 \
    uint16_t size;                                                                              \
    uint8_t format, content;                                                                    \
    uint16_t temperature[6], activity[3], average_power;                                        \
    uint64_t energy, clock_counter;                                                             \
    uint16_t average_clocks[7], current_clocks[7];                                              \
    uint32_t throttle;                                                                          \
    uint16_t fan, pcie_width, pcie_speed;                                                       \
    wider gfx_acc, mem_acc;                                                                     \
    uint16_t hbm[4];                                                                            \
    uint64_t firmware_time;                                                                     \
    uint16_t voltage[3];                                                                        \
    uint64_t throttle_bits;                                                                     \
    uint16_t current_power, vcn[4];                                                             \
    uint32_t locked;                                                                            \
    uint16_t xgmi_width, xgmi_speed;                                                            \
    uint64_t pcie[5], xgmi_read[8], xgmi_written[8];                                            \
    uint16_t gfx_clocks[8], other_clocks[12], jpeg[32];                                         \
    wider naks[2];                                                                              \
    uint64_t cycles, prochot, ppt, socket, regulator, memory;                                   \
  }
TABLE(table_26, uint32_t);
TABLE(table_27, uint64_t);
/* Measured with AMD's headers of 6.1.2 and 10.1. */
_Static_assert(offsetof(struct table_26, average_power) == 22, "");
_Static_assert(offsetof(struct table_26, throttle_bits) == 112, "");
_Static_assert(offsetof(struct table_26, current_power) == 120, "");
_Static_assert(offsetof(struct table_26, xgmi_width) == 136, "");
_Static_assert(offsetof(struct table_26, xgmi_read) == 184, "");
_Static_assert(offsetof(struct table_26, cycles) == 424, "");
_Static_assert(offsetof(struct table_27, throttle_bits) == 120, "");
_Static_assert(offsetof(struct table_27, current_power) == 128, "");
_Static_assert(offsetof(struct table_27, xgmi_width) == 144, "");
_Static_assert(offsetof(struct table_27, xgmi_read) == 192, "");
_Static_assert(offsetof(struct table_27, cycles) == 440, "");
_Static_assert(offsetof(struct table_27, memory) == 480, "");

static uint64_t field(void *handle, const char *key, uint64_t blank) {
  unsigned long long found = 0;
  return number(handle, key, &found) ? blank : (uint64_t)found;
}

#define FILL(table)                                                                             \
  do {                                                                                          \
    (table)->current_power = (uint16_t)field(handle, "power_now", UINT16_MAX);                  \
    (table)->average_power = (uint16_t)field(handle, "power", UINT16_MAX);                      \
    (table)->throttle_bits = field(handle, "throttle_bits", UINT64_MAX);                        \
    (table)->xgmi_width = (uint16_t)field(handle, "xgmi_width", UINT16_MAX);                    \
    (table)->xgmi_speed = (uint16_t)field(handle, "xgmi_speed", UINT16_MAX);                    \
    for (int link = 0; link < 8; link++) {                                                      \
      (table)->xgmi_read[link] = field(handle, "xgmi_read", UINT64_MAX);                        \
      (table)->xgmi_written[link] = field(handle, "xgmi_written", UINT64_MAX);                  \
    }                                                                                           \
  } while (0)
#define FILL_COUNTERS(table)                                                                    \
  do {                                                                                          \
    (table)->cycles = field(handle, "cycles", UINT64_MAX);                                      \
    (table)->prochot = field(handle, "prochot", UINT64_MAX);                                    \
    (table)->ppt = field(handle, "ppt", UINT64_MAX);                                            \
    (table)->socket = field(handle, "socket", UINT64_MAX);                                      \
    (table)->regulator = field(handle, "regulator", UINT64_MAX);                                \
    (table)->memory = field(handle, "hbm", UINT64_MAX);                                         \
  } while (0)

int amdsmi_get_gpu_metrics_info(void *handle, void *into) {
  char value[128];
  int release = setting("release", 26), code = ask(handle, "table", value);
  if (code) return code;
  if (release >= 27) {
    memset(into, 0xFF, sizeof(struct table_27));
    FILL((struct table_27 *)into);
    FILL_COUNTERS((struct table_27 *)into);
  } else if (release >= 25) {
    memset(into, 0xFF, sizeof(struct table_26));
    FILL((struct table_26 *)into);
    FILL_COUNTERS((struct table_26 *)into);
  } else {
    memset(into, 0xFF, offsetof(struct table_26, cycles));
    FILL((struct table_26 *)into);
  }
  return SUCCESS;
}

/* `xgmi_links` has a letter for each link: U up, D down, X disabled. */
int amdsmi_get_gpu_xgmi_link_status(void *handle, uint32_t status[24]) {
  char value[128];
  int code = setting("release", 26) < 25 ? NOT_SUPPORTED : ask(handle, "xgmi_links", value);
  if (code) return code;
  status[0] = (uint32_t)strlen(value);
  for (uint32_t link = 0; link < status[0] && link < 8; link++)
    status[link + 1] = value[link] == 'U' ? 1 : value[link] == 'D' ? 0 : 2;
  return SUCCESS;
}

int amdsmi_get_gpu_ecc_count(void *handle, uint64_t block, uint64_t counts[8]) {
  unsigned long long corrected = 0, uncorrected = 0;
  int code = block != 0x80 ? INVALID : number(handle, "xgmi_corrected", &corrected);
  if (!code) code = number(handle, "xgmi_uncorrected", &uncorrected);
  if (code) return code;
  counts[0] = corrected;
  counts[1] = uncorrected;
  return SUCCESS;
}

int amdsmi_get_gpu_total_ecc_count(void *handle, uint64_t counts[8]) {
  unsigned long long corrected = 0, uncorrected = 0;
  int code = number(handle, "ecc_corrected", &corrected);
  if (!code) code = number(handle, "ecc_uncorrected", &uncorrected);
  counts[0] = corrected;
  counts[1] = uncorrected;
  return code;
}
