// Tests engines behind the engine protocol from the command line. The subjects are mostly our own
// engines behind `twinrun_dev serve`, so that the expected bits are known.
#include "checkpoints/container/array.h"
#include "checkpoints/container/zip.h"
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

std::string served(const std::string& engine, const std::string& more = "") {
  return std::string("exec:'") + TWINRUN_DEV + "' serve --engine " + engine +
         (more.empty() ? "" : " --fault '" + more + "'");
}

class Exec : public testing::Test {
 protected:
  // Where no known program explains an engine, the search for one costs what many steps cost.
  void write_small() const {
    write_text(folder_ / "small.toml", R"(data = { train = 32, eval = 16 }
model.layers = [{ kind = "flatten" }, { kind = "dense", units = 10 }]
optimizer = { kind = "sgd", lr = 0.05 }
train = { batch = 8, steps = 6 }
tpu.cores = 2
)");
  }
  nlohmann::json train(const std::string& scenario, const std::string& engine,
                       const std::string& cores) {
    const Outcome r = twinrun(folder_, {"train", scenario, "--engine", engine, "--cores", cores,
                                        "--set", "train.steps=6", "--json", "-q", "-o", "run.h5"});
    EXPECT_EQ(r.code, 0) << r.err;
    return json_of(r.out);
  }
  nlohmann::json diagnose(const std::string& scenario, const std::string& subject, int code) {
    const Outcome r =
        twinrun(folder_, {"diagnose", scenario, "--subject", subject, "--json", "-q", "-o", "out"});
    EXPECT_EQ(r.code, code) << r.out.substr(0, 2000) << r.err;
    return json_of(r.out);
  }
  Folder folder_;
};

// The protocol must carry everything: dropout's random numbers, statistics of each core, Adam's
// slots.
TEST_F(Exec, AServedEngineGivesTheBitsOfTheEngine) {
  const std::pair<const char*, const char*> runs[] = {
      {"drill_triplet", "cpu"}, {"drill_triplet", "tpu"}, {"drill_dropout", "tpu"}};
  for (const auto& [scenario, engine] : runs) {
    for (const char* cores : {"1", "4"}) {
      EXPECT_EQ(train(scenario, served(engine), cores)["state_digest"],
                train(scenario, engine, cores)["state_digest"])
          << scenario << " " << engine << " " << cores;
    }
  }
}

TEST_F(Exec, AConformingSubjectIsNoise) {
  const auto report = diagnose("drill_mlp", served("tpu"), 0);
  EXPECT_EQ(report["verdict"]["class"], "NOISE");
  EXPECT_EQ(report["findings"][0]["level"], "C");
  EXPECT_TRUE(report["probes"].empty());  // no op was shown
}

TEST_F(Exec, AWrongOneIsFoundByItsTensors) {
  const auto report =
      diagnose("drill_mlp", served("tpu", "scale@dense1/kernel.grad.all_reduce,magnitude=1.5"), 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], "dense1/kernel.grad");
  EXPECT_EQ(report["findings"][0]["step"], 0);
}

// A served engine reports the outputs of its layers, so that the verdict can name the wrong layer
// and not only the wrong loss.
TEST_F(Exec, TheLayerThatIsWrongIsNamed) {
  const auto report =
      diagnose("drill_mlp", served("cpu", "scale@dense2/dot_general,magnitude=1.5"), 20);
  EXPECT_EQ(report["findings"][0]["op"], "dense2") << report["findings"];
  EXPECT_EQ(report["findings"][0]["phase"], "forward");
  EXPECT_EQ(report["findings"][1]["op"], "loss");
  const std::string headline = report["verdict"]["headline"];
  EXPECT_NE(headline.find("computes the output of dense2 wrong (forward pass)"), std::string::npos)
      << headline;
}

// A Python proxy in front of a served engine of several cores. At one step of a run it passes the
// engine another state than the engine had reported ("flip"), or it reports that the weights of one
// core did not change ("lose").
std::string with_mishap(const Folder& folder, const std::string& what, int step) {
  write_text(folder / "mishap.py", R"(import json, os, subprocess, sys
sys.path.insert(0, ")" TWINRUN_SOURCE_DIR R"(/adapters")
from twinrun_engine import load, save
import numpy
what, when, folder = sys.argv[1], int(sys.argv[2]), sys.argv[-1]
engine = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
cores, last = {}, {}
for line in sys.stdin:
    request = json.loads(line)
    program = request.get("program")
    if request["do"] == "prepare":
        cores[program] = json.load(open(os.path.join(folder, program)))["cores"]
    # The first time that the run itself comes to that step: a later question about it is answered as it should be.
    struck = request["do"] == "step" and request["step"] == when and request["state"] is None and cores[program] > 1
    if struck and what == "flip":
        state = {key: array for key, array in last[program].items() if key.startswith("state/")}
        key = "state/dense1/kernel"
        state[key] = state[key].copy()
        state[key].view(numpy.uint32).reshape(-1)[77] ^= 1 << 29
        save(os.path.join(folder, "flipped.safetensors"), state)
        request["state"] = "flipped.safetensors"
    # What it said it had lost, it goes on without.
    if what == "lose" and request["do"] == "step" and request["step"] == when + 1 and request["state"] is None and cores[program] > 1:
        save(os.path.join(folder, "lost.safetensors"), {key: array for key, array in last[program].items() if key.startswith("state/")})
        request["state"] = "lost.safetensors"
    engine.stdin.write(json.dumps(request) + "\n")
    engine.stdin.flush()
    reply = json.loads(engine.stdout.readline())
    if "result" in reply and cores[program] > 1:
        path = os.path.join(folder, reply["result"])
        result = load(path)
        if struck and what == "lose":
            key = "state/dense1/kernel"
            due, old = result.pop(key), last[program][key]
            for core in range(cores[program]):
                result[f"{key}@{core}"] = old if core == 1 else due
            os.remove(path)
            save(path, result)
        last[program] = result
    print(json.dumps(reply), flush=True)
)");
  return "exec:/usr/bin/python3 '" + folder / "mishap.py" + "' " + what + " " +
         std::to_string(step) + " '" + TWINRUN_DEV + "' serve --engine cpu";
}

// A fault in only one of sixty steps must be found, with its step.
TEST_F(Exec, AFaultOfOneStepIsFoundWithItsStep) {
  write_small();
  const Words longer = {"--set", "train.steps=60", "--quick"};
  const auto diagnosed = [&](const std::string& subject) {
    const Outcome r = twinrun(
        folder_, with({"diagnose", "small.toml", "--subject", subject, "--json", "-q", "-o", "out"},
                      longer));
    EXPECT_EQ(r.code, 20) << r.out.substr(0, 2000) << r.err;
    return json_of(r.out);
  };
  const auto turned =
      diagnosed(served("cpu", "scale@dense1/kernel.grad.all_reduce,magnitude=-1,step=11"));
  EXPECT_EQ(turned["findings"][0]["op"], "dense1/kernel.grad") << turned["findings"];
  EXPECT_EQ(turned["findings"][0]["step"], 11);
  EXPECT_EQ(turned["step_coverage"]["screened"], 60);
  EXPECT_EQ(turned["step_coverage"]["outside"], nlohmann::json::array({11}));

  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "needs python3-numpy";
  const Folder aside;
  const auto flipped = diagnosed(with_mishap(aside, "flip", 6));
  EXPECT_EQ(flipped["findings"][0]["cause"], "other_start") << flipped["findings"];
  EXPECT_EQ(flipped["findings"][0]["step"], 6);
  const auto lost = diagnosed(with_mishap(aside, "lose", 9));
  EXPECT_EQ(lost["findings"][0]["step"], 9) << lost["findings"];
  EXPECT_EQ(lost["findings"][0]["core"], 1) << lost["findings"];
}

// After SIGKILL, twinrun itself cannot clean up. The watcher must end the engine and its daemons,
// and remove the session folder.
TEST_F(Exec, AKilledRunLeavesNoEngine) {
  fs::create_directory(folder_ / "sessions");
  write_text(
      folder_ / "engine.sh",
      "trap '' HUP TERM PIPE\nsetsid sleep 1000 &\necho $! > ../daemon\nmv ../daemon "
      "../daemon.pid\necho $$ > ../hung\nmv ../hung ../hung.pid\nwhile :; do sleep 1; done\n");
  const std::string engine = "exec:sh -c 'cd sessions && exec sh ../engine.sh'";
  Process process(folder_, {"train", "drill_mlp", "--engine", engine, "-o", "run.h5"},
                  {{"TMPDIR", folder_ / "sessions"}});
  ASSERT_TRUE(process.wait_for(folder_ / "hung.pid"));
  EXPECT_FALSE(fs::is_empty(folder_ / "sessions"));
  process.kill(SIGKILL);
  EXPECT_EQ(process.finish().signal, SIGKILL);
  const auto end = Clock::now() + std::chrono::seconds(20);
  for (const char* name : {"hung.pid", "daemon.pid"}) {
    const pid_t pid = std::stoi(read_text(folder_ / name));
    bool there = true;
    while (there && Clock::now() < end) {
      // A zombie counts as ended: it only waits to be reaped.
      const std::string state = read_text("/proc/" + std::to_string(pid) + "/stat");
      there = !state.empty() && state.find(") Z") == std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_FALSE(there) << name;
  }
  while (!fs::is_empty(folder_ / "sessions") && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(fs::is_empty(folder_ / "sessions"));
}

// All verbs end with 125 if the engine fails, whether at its start or at a later step.
TEST_F(Exec, OneThatIsNotThereOrDies) {
  for (const char* option : {"--subject", "--baseline"}) {
    const Outcome gone =
        twinrun(folder_, {"diagnose", "drill_mlp", option, "exec:/no/such/engine", "-o", "out"});
    EXPECT_EQ(gone.code, 125);
    EXPECT_TRUE(gone.says("cannot be started")) << gone.err;
  }
  const std::string dies = "exec:sh -c 'echo no device >&2; exit 7'";
  for (const Words& words : {Words{"diagnose", "drill_mlp", "--subject", dies, "-o", "out"},
                             Words{"train", "drill_mlp", "--engine", dies, "-o", "run.h5"}}) {
    const Outcome o = twinrun(folder_, words);
    EXPECT_EQ(o.code, 125) << words[0];
    EXPECT_TRUE(o.says("exit status 7")) << o.err;
    EXPECT_TRUE(o.says("no device")) << o.err;
  }
  EXPECT_TRUE(folder_.entries().empty());
}

// A bundle of a wrong engine that is a script includes the script, is reduced only on request, and
// ends with 125 where the engine cannot run.
TEST_F(Exec, ABundleTakesTheScriptAlong) {
  write_text(folder_ / "engine.py", R"(import json, os, subprocess, sys
open("needed")
engine = subprocess.Popen([")" TWINRUN_DEV R"(", "serve", "--engine", "tpu", "--fault",
                           "scale@dense1/kernel.grad,magnitude=1.5"] + sys.argv[1:],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in sys.stdin:
    if os.path.exists("tired") and json.loads(line).get("step") == 3:
        sys.exit("out of memory")
    engine.stdin.write(line)
    engine.stdin.flush()
    print(engine.stdout.readline(), end="", flush=True)
)");
  write_text(folder_ / "needed", "");
  write_small();
  const std::string engine = "exec:/usr/bin/python3 engine.py";
  ASSERT_EQ(twinrun(folder_,
                    {"diagnose", "small.toml", "--quick", "--subject", engine, "-q", "-o", "out"})
                .code,
            20);
  const Outcome made = twinrun(folder_, {"bundle", "out", "-o", "fault.zip", "-q"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_TRUE(made.prints("packed: engine/engine.py, which is engine.py")) << made.out;
  EXPECT_TRUE(made.prints("not packed: /usr/bin/python3 (it is")) << made.out;
  EXPECT_TRUE(made.prints("what the scripts import from elsewhere")) << made.out;
  EXPECT_TRUE(made.prints("twinrun replay fault.zip --allow-exec")) << made.out;
  EXPECT_TRUE(made.prints("not reduced: the engine is third-party code")) << made.out;
  EXPECT_FALSE(made.prints("reduced, ")) << made.out;

  const Words replay = {"replay", "fault.zip", "-q"}, allowed = with(replay, {"--allow-exec"});
  EXPECT_EQ(twinrun(folder_, replay).code, 128);
  fs::remove(folder_ / "engine.py");  // as if on another machine
  const Outcome again = twinrun(folder_, allowed);
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  write_text(folder_ / "tired", "");
  const Outcome tired = twinrun(folder_, allowed);
  EXPECT_EQ(tired.code, 125) << tired.out;
  EXPECT_TRUE(tired.says("fails on this machine, so nothing can be compared")) << tired.err;
  fs::remove(folder_ / "needed");
  const Outcome gone = twinrun(folder_, allowed);
  EXPECT_EQ(gone.code, 125) << gone.out;
  EXPECT_TRUE(gone.says("No such file")) << gone.err;
}

// Nothing in a default bundle says where its maker keeps files, and it is replayed all the same.
TEST_F(Exec, ABundleDoesNotSayWhereFilesLie) {
  const Folder secret;  // outside of the current folder
  write_small();
  write_text(secret / "engine.py", R"(import os, sys
os.execv(sys.argv[1], sys.argv[1:])
)");
  const std::string engine = "exec:/usr/bin/python3 '" + secret / "engine.py" + "' '" +
                             TWINRUN_DEV +
                             "' serve --engine tpu --fault scale@dense1/kernel.grad,magnitude=1.5";
  const std::string results = secret / "results";
  ASSERT_EQ(twinrun(folder_,
                    {"diagnose", "small.toml", "--quick", "--subject", engine, "-q", "-o", results})
                .code,
            20);
  const auto packed = [&](const Words& more) {
    const Outcome made = twinrun(folder_, with({"bundle", results, "-o", "fault.zip", "-q"}, more));
    EXPECT_EQ(made.code, 0) << made.err;
    std::string all;
    const auto members =
        read_zip(*read_whole_file(folder_ / "fault.zip"), "", [](const auto&) { return true; });
    for (const ZipMember& m : *members)
      all.append(reinterpret_cast<const char*>(m.bytes.data()), m.bytes.size());
    return all;
  };
  EXPECT_NE(packed({"--with-paths"}).find(secret.path()), std::string::npos);
  EXPECT_EQ(twinrun(folder_, {"replay", "fault.zip", "-q", "--allow-exec"}).code, 0);
  const std::string all = packed({});
  EXPECT_EQ(all.find(secret.path()), std::string::npos);
  EXPECT_EQ(all.find(folder_.path()), std::string::npos);
  EXPECT_EQ(all.find(TWINRUN_DEV), std::string::npos);
  EXPECT_NE(all.find("…/results"), std::string::npos);
  fs::remove(secret / "engine.py");  // as if on another machine
  const Outcome again = twinrun(folder_, {"replay", "fault.zip", "-q", "--allow-exec"});
  EXPECT_EQ(again.code, 0) << again.out << again.err;
}

// A script around a served engine that ends after this many requests.
std::string short_lived(const Folder& folder, int requests) {
  write_text(
      folder / "engine.sh",
      "i=0; (while [ $i -lt " + std::to_string(requests) +
          " ] && read -r line; do echo \"$line\"; i=$((i+1)); done) | '" + TWINRUN_DEV +
          "' serve --engine cpu \"$1\"\nprintf 'out of memory \\377\\033[2J\\n' >&2; exit 9\n");
  return "exec:sh '" + folder / "engine.sh" + "'";
}

TEST_F(Exec, OneThatDiesInTheMiddle) {
  const Folder aside;
  const Outcome train =
      twinrun(folder_, {"train", "drill_mlp", "--engine", short_lived(aside, 5), "-o", "run.h5"});
  EXPECT_EQ(train.code, 125) << train.err;
  EXPECT_TRUE(train.says("step 3: ended with exit status 9")) << train.err;
  EXPECT_TRUE(train.says("out of memory")) << train.err;
  EXPECT_FALSE(train.says("\x1b")) << "an engine writes to the terminal";
  EXPECT_FALSE(fs::exists(folder_ / "run.h5"));

  const auto report = diagnose("drill_mlp", short_lived(aside, 5), 125);
  EXPECT_EQ(report["verdict"]["class"], "INCONCLUSIVE");
  const auto& finding = report["findings"][0];
  EXPECT_EQ(finding["cause"], "engine_failed");
  EXPECT_NE(finding["sentence"].get<std::string>().find("subject, one core"), std::string::npos);
  EXPECT_NE(finding.dump().find("out of memory"), std::string::npos);
  EXPECT_NE(read_text(folder_ / "out/report.md").find("out of memory"), std::string::npos);

  // E1 takes 17 requests besides hello, so this engine dies during T, and the report has no run T.
  const auto later = diagnose("drill_mlp", short_lived(aside, 25), 125)["findings"][0];
  EXPECT_NE(later["sentence"].get<std::string>().find("subject, sharded"), std::string::npos)
      << later;
}

TEST_F(Exec, SitsInTheReferencesChair) {
  const Words quick = {"diagnose", "drill_mlp", "--quick", "--json", "-q", "-o", "out"};
  const auto ours = json_of(twinrun(folder_, quick).out);
  const auto theirs = json_of(twinrun(folder_, with(quick, {"--baseline", served("cpu")})).out);
  EXPECT_EQ(theirs["verdict"]["class"], ours["verdict"]["class"]);
  EXPECT_EQ(theirs["controls"][0], ours["controls"][0]);  // R = R2
  for (const char* key : {"root_digest", "eval_loss_hex"}) {
    for (size_t i = 0; i < ours["runs"].size(); ++i)
      EXPECT_EQ(theirs["runs"][i][key], ours["runs"][i][key]) << i;
  }
}

TEST_F(Exec, WhatItSaysMeanwhileIsShown) {
  write_text(folder_ / "engine.sh", "echo '{\"alive\":\"compiling\\u001b[2J\"}'; exec '" +
                                        std::string(TWINRUN_DEV) + "' serve \"$1\"\n");
  const Words words = {"train",         "drill_mlp", "--set",
                       "train.steps=1", "--engine",  "exec:sh engine.sh"};
  EXPECT_TRUE(twinrun(folder_, words).says("the engine says: compiling"));
  const Outcome o = twinrun_on_terminal(folder_, words);
  EXPECT_TRUE(o.prints("the engine says: compiling")) << o.out;
  EXPECT_FALSE(o.prints("\x1b[2J"));
  EXPECT_EQ(twinrun(folder_, with(words, {"-q"})).err, "");
}

TEST_F(Exec, ASecondSignalLeavesNothingOfAHungOne) {
  ::mkdir((folder_ / "tmp").c_str(), 0700);
  write_text(folder_ / "engine.sh",
             "echo $$ > pid.new; mv pid.new pid; trap '' TERM INT; while :; do sleep 0.1; done\n");
  Process process(folder_, {"train", "drill_mlp", "--engine", "exec:sh engine.sh"},
                  {{"TMPDIR", folder_ / "tmp"}});
  ASSERT_TRUE(process.wait_for(folder_ / "pid"));
  process.kill(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.kill(SIGINT);
  EXPECT_EQ(process.finish().code, 130);
  const pid_t engine = std::stoi(read_text(folder_ / "pid"));
  const auto zombie = [&] {  // a zombie, if no init process reaps it
    std::ifstream stat("/proc/" + std::to_string(engine) + "/stat");
    std::string word;
    stat >> word >> word >> word;
    return word == "Z";
  };
  for (int i = 0; i < 100 && ::kill(engine, 0) == 0 && !zombie(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(::kill(engine, 0) != 0 || zombie());
  EXPECT_TRUE(fs::is_empty(folder_ / "tmp"));
}

// A Python proxy that rewrites the results as HDF5 with h5py.
TEST_F(Exec, ResultsInHdf5AreTheSameBits) {
  if (std::system("/usr/bin/python3 -c 'import h5py, numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "needs python3-h5py";
  write_text(folder_ / "proxy.py", R"(import json, os, subprocess, sys
sys.path.insert(0, ")" TWINRUN_SOURCE_DIR R"(/adapters")
from twinrun_engine import load
import h5py
folder = sys.argv[-1]
engine = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in sys.stdin:
    engine.stdin.write(line)
    engine.stdin.flush()
    reply = json.loads(engine.stdout.readline())
    if "result" in reply:
        path = os.path.join(folder, reply["result"])
        name = reply["result"].replace(".safetensors", ".h5")
        with h5py.File(os.path.join(folder, name), "w") as file:
            for i, (key, array) in enumerate(load(path).items()):
                packed = {"compression": "gzip"} if array.ndim and i % 2 else {}
                file.create_dataset(key, data=array, **packed)
        os.remove(path)
        reply["result"] = name
    print(json.dumps(reply), flush=True)
)");
  const std::string proxy = "exec:/usr/bin/python3 '" + folder_ / "proxy.py" + "' '" + TWINRUN_DEV +
                            "' serve --engine tpu";
  EXPECT_EQ(train("drill_dropout", proxy, "4")["state_digest"],
            train("drill_dropout", "tpu", "4")["state_digest"]);
}

class ExecDoctor : public Exec {
 protected:
  nlohmann::json examine(const std::string& engine, int code) {
    const Outcome o = twinrun(folder_, {"doctor", "--engine", engine, "--json"});
    EXPECT_EQ(o.code, code) << o.out << o.err;
    return json_of(o.out);
  }
  static std::string failed(const nlohmann::json& report) {
    for (const auto& check : report["checks"]) {
      if (!check["passed"]) return check["name"];
    }
    return "";
  }
};

TEST_F(ExecDoctor, ARightEngine) {
  for (const char* engine : {"cpu", "tpu", "honest:3"}) {
    const auto report = examine(served(engine), 0);
    EXPECT_EQ(report["passed"], true);
    EXPECT_EQ(report["checks"].size(), 4u);
    EXPECT_NE(report["answer"].get<std::string>().find("computes what it should"),
              std::string::npos);
    EXPECT_EQ(failed(examine(engine, 0)), "");
  }
  const Outcome people = twinrun(folder_, {"doctor", "--engine", served("tpu")});
  EXPECT_TRUE(people.prints("known answer, 8 cores")) << people.out;
  EXPECT_TRUE(people.prints("suspect the model")) << people.out;
}

TEST_F(ExecDoctor, AWrongEngine) {
  auto report = examine(served("tpu", "scale@dense1/kernel.grad,magnitude=1.5"), 1);
  EXPECT_EQ(failed(report), "known answer, 1 core");
  EXPECT_NE(report["answer"].get<std::string>().find("not a model or data"), std::string::npos);
  report = examine(served("tpu", "drop_core@*.all_reduce,core=3"), 1);
  EXPECT_EQ(failed(report), "known answer, 8 cores");
  EXPECT_NE(report["answer"].get<std::string>().find("across cores"), std::string::npos);
  report = examine("exec:/no/such/engine", 1);
  EXPECT_EQ(failed(report), "starts");
  report = examine("exec:sh -c 'echo no device >&2; exit 7'", 1);
  EXPECT_NE(report["checks"][0]["detail"].get<std::string>().find("no device"), std::string::npos);
  EXPECT_EQ(twinrun(folder_, {"doctor", "--engine", "tpx"}).code, 128);
}

// An engine whose hello lists devices, of which one can be used only where `state` is "-".
std::string with_devices(const Folder& folder, const std::string& state,
                         const std::string& more = "") {
  std::ofstream(folder / "devices.py") << R"(
import json, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
devices = [{"name": "ACC_0", "kind": "acc v1", "memory": 8 << 30, "used": 1 << 20, "trouble": ""},
           {"name": "ACC_1\u001b[31m", "kind": "acc v1", "trouble": sys.argv[1].strip("-")}]
for line in sys.stdin:
    child.stdin.write(line)
    child.stdin.flush()
    reply = json.loads(child.stdout.readline())
    if "hello" in reply:
        reply["hello"]["devices"] = )" + (more.empty() ? "devices" : more) +
                                              R"(
    print(json.dumps(reply), flush=True)
)";
  return "exec:/usr/bin/python3 '" + (folder / "devices.py") + "' '" + state + "' '" + TWINRUN_DEV +
         "' serve --engine tpu";
}

TEST_F(ExecDoctor, ListsTheDevicesOfAnEngine) {
  const auto good = examine(with_devices(folder_, "-"), 0);
  ASSERT_EQ(good["devices"].size(), 2U);
  EXPECT_EQ(good["devices"][0]["name"], "ACC_0");
  EXPECT_EQ(good["devices"][0]["memory"], int64_t{8} << 30);
  EXPECT_EQ(good["devices"][0]["usable"], true);
  EXPECT_EQ(good["devices"][1]["memory"], nullptr);
  EXPECT_EQ(examine("cpu", 0)["devices"].size(), 0U);
  const std::string engine = with_devices(folder_, "held by process 17");
  const auto broken = examine(engine, 1);
  EXPECT_EQ(failed(broken), "devices");
  EXPECT_EQ(broken["devices"][1]["usable"], false);
  EXPECT_EQ(broken["devices"][1]["trouble"], "held by process 17");
  const Outcome people = twinrun(folder_, {"doctor", "--engine", engine});
  EXPECT_TRUE(people.prints("ACC_0 (acc v1), 1 MiB of 8 GiB in use")) << people.out;
  EXPECT_TRUE(people.prints("held by process 17")) << people.out;
  EXPECT_EQ(people.out.find('\x1b'), std::string::npos) << people.out;
}

TEST_F(ExecDoctor, RefusesDevicesThatAreNone) {
  for (const auto& [devices, says] :
       {std::pair{"3", "'devices' is 3"}, std::pair{"[3]", "device 0 is 3"},
        std::pair{"[{\"name\": 3}]", "'name' of device 0 is 3"},
        std::pair{"[{\"memory\": -1}]", "'memory' of device 0 is -1"},
        std::pair{"[{}] * 513", "at most 512 devices"}}) {
    const auto report = examine(with_devices(folder_, "-", devices), 1);
    EXPECT_EQ(failed(report), "starts");
    const std::string detail = report["checks"][0]["detail"];
    EXPECT_NE(detail.find(says), std::string::npos) << detail;
  }
}

// The command that README and filing.md recommend for `git bisect run`. git skips a commit on 125,
// so a good commit must not give 125, and a commit whose engine fails must give nothing else.
TEST_F(Exec, TheBisectionThatIsDocumentedKnowsAGoodCommit) {
  const Words documented = {"diagnose",           "digits_mlp", "--quick",      "--fail-on",
                            "engine_bug,program", "--subject",  "exec:./engine"};
  std::string text = "twinrun";
  for (const std::string& word : documented) text += " " + word;
  for (const char* page : {"README.md", "docs/guides/filing.md"})
    EXPECT_NE(read_text(std::string(TWINRUN_SOURCE_DIR "/") + page).find(text), std::string::npos)
        << page;
  const auto answer = [&](const std::string& engine) {
    write_text(folder_ / "engine", "#!/bin/sh\n" + engine + "\n");
    fs::permissions(folder_ / "engine", fs::perms::owner_all);
    return twinrun(folder_, with(documented, {"--set", "train.steps=20", "-q", "-o", "out"})).code;
  };
  const std::string serve = std::string("exec '") + TWINRUN_DEV + "' serve --engine tpu ";
  EXPECT_EQ(answer(serve + "\"$@\""), 0);
  EXPECT_EQ(answer(serve + "--fault 'scale@dense1/kernel.grad,magnitude=1.5' \"$@\""), 20);
  short_lived(folder_, 5);
  EXPECT_EQ(answer("exec sh ./engine.sh \"$@\""), 125);
  EXPECT_EQ(answer("exit 3"), 125);
}

}  // namespace
}  // namespace twinrun::e2e
