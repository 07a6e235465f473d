plugins {
    id("com.android.application") version "8.13.0"
    id("org.jetbrains.kotlin.android") version "2.0.21"
}

android {
    namespace = "sample"
    compileSdk = 35

    defaultConfig {
        applicationId = "dev.epwatch.sample"
        minSdk = 24
        targetSdk = 35
        versionCode = 1
        versionName = "1.0"
        testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
    }

    buildTypes {
        // As shipped: the AAR's rules must be enough.
        release {
            isMinifyEnabled = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
        }
    }

    // The DSP opens its skeleton as a file.
    packaging { jniLibs { useLegacyPackaging = true } }

    kotlinOptions { jvmTarget = "17" }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

dependencies {
    // What `sdk/android/aar.py` packed.
    implementation(files("libs/epwatch.aar"))
    implementation("org.jetbrains.kotlin:kotlin-stdlib:2.0.21")
    // On an emulator `-Ponnxruntime=onnxruntime-android:1.24.3`, which has the placement.
    val onnxruntime = findProperty("onnxruntime") ?: "onnxruntime-android-qnn:1.23.2"
    implementation("com.microsoft.onnxruntime:$onnxruntime")

    androidTestImplementation("androidx.test:core:1.6.1")
    androidTestImplementation("androidx.test:runner:1.6.2")
    androidTestImplementation("androidx.test.ext:junit:1.2.1")
}
