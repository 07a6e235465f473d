/*
 * The part of ONNX Runtime's C API that the example calls, by position in OrtApi. An app includes
 * onnxruntime_c_api.h instead, and links the library or loads it as here.
 */
#ifndef EXAMPLE_ORT_H
#define EXAMPLE_ORT_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Function)(void);
typedef struct {
  const Function *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

static const OrtApiBase *ort_base;
static const Function *ort_api;

/* Calls that return an OrtStatus*, and those that free. */
#define ORT(slot, types, ...) ort_check(((void *(*)types)ort_api[slot])(__VA_ARGS__))
#define ORT_RELEASE(slot, object) (((void (*)(void *))ort_api[slot])(object))

enum {
  GET_ERROR_MESSAGE = 2,
  CREATE_ENV = 3,
  CREATE_SESSION = 7,
  RUN = 9,
  CREATE_SESSION_OPTIONS = 10,
  CLONE_SESSION_OPTIONS = 12,
  SESSION_GET_INPUT_NAME = 36,
  SESSION_GET_OUTPUT_NAME = 37,
  CREATE_TENSOR_WITH_DATA = 49,
  GET_TENSOR_MUTABLE_DATA = 51,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  GET_TENSOR_SHAPE_ELEMENT_COUNT = 64,
  GET_TENSOR_TYPE_AND_SHAPE = 65,
  CREATE_CPU_MEMORY_INFO = 69,
  ALLOCATOR_FREE = 76,
  GET_DEFAULT_ALLOCATOR = 78,
  RELEASE_ENV = 92,
  RELEASE_MEMORY_INFO = 94,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_TENSOR_TYPE_AND_SHAPE_INFO = 99,
  RELEASE_SESSION_OPTIONS = 100,
  REGISTER_EP_LIBRARY = 301,
  GET_EP_DEVICES = 303,
  APPEND_EP = 304,
  EP_DEVICE_NAME = 312
};

static void ort_check(void *status) {
  if (status != NULL) {
    fprintf(stderr, "ort: %s\n", ((const char *(*)(void *))ort_api[GET_ERROR_MESSAGE])(status));
    exit(3);
  }
}

static void ort_load(const char *library) {
  void *handle = dlopen(library, RTLD_NOW);
  Function entry;
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  *(void **)&entry = dlsym(handle, "OrtGetApiBase");
  ort_base = ((const OrtApiBase *(*)(void))entry)();
  ort_api = ort_base->GetApi(17);
}

#endif
