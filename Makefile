# needle: `make train` trains the default model, `make test` runs all tests; both install and build what they need.
BUILD ?= build
JOBS ?= $(shell nproc)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PACKAGES := g++ gfortran make cmake ninja-build libopenblas-openmp-dev nlohmann-json3-dev libcli11-dev libgtest-dev
# Faster products; without it they are OpenBLAS's.
WANTED := libdnnl-dev

.PHONY: help train test build deps bench asan format clean
help:
	@echo "make train   train the default model to its end and show the result"
	@echo "make test    run all tests"
	@echo "make bench   measure training steps"
	@echo "make asan    run all tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make format  format all sources"

train: build
	$(BUILD)/needle train

test: OPTIONS := -DNEEDLE_CUDA=EMULATED
test: build
	cd $(BUILD) && ctest --output-on-failure --no-tests=error -j $(JOBS)

bench: build
	$(BUILD)/needle bench

build: deps
	@cmake -S . -B $(BUILD) -G Ninja $(OPTIONS) > $(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	cmake --build $(BUILD) -j $(JOBS)

# Asks the package system only for what is missing.
deps:
	@missing=""; for package in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
	  echo "installing:$$missing"; \
	  $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; \
	fi
	@dpkg-query -W -f '$${Status}' $(WANTED) 2>/dev/null | grep -q 'ok installed' || { \
	  echo "installing: $(WANTED)"; \
	  { $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $(WANTED); } \
	    || echo "going on without $(WANTED)"; \
	}

asan: deps
	cmake -S . -B $(BUILD)-asan -G Ninja -DNEEDLE_SANITIZE=ON -DNEEDLE_CUDA=EMULATED
	cmake --build $(BUILD)-asan -j $(JOBS)
	cd $(BUILD)-asan && ASAN_OPTIONS=detect_leaks=1 ctest --output-on-failure --no-tests=error -j $(JOBS)

format:
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf $(BUILD) $(BUILD)-asan
