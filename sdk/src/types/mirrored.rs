//! Enums that have the values of the wire's enums. A new value there does not compile here before it is added.

use epwatch_proto as proto;

macro_rules! mirrored {
    (
        $(#[$attr:meta])*
        pub enum $name:ident { $($(#[$vattr:meta])* $variant:ident,)+ }
    ) => {
        $(#[$attr])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vattr])* $variant,)+
        }

        impl $name {
            /// Every value of this version.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in SQL, metrics and JSON.
            pub fn as_str(self) -> &'static str {
                proto::$name::from(self).as_str()
            }

            /// The value of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                proto::$name::from_name(name).map(Self::from)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        #[doc(hidden)]
        impl From<proto::$name> for $name {
            fn from(value: proto::$name) -> Self {
                match value {
                    $(proto::$name::$variant => Self::$variant,)+
                }
            }
        }

        #[doc(hidden)]
        impl From<$name> for proto::$name {
            fn from(value: $name) -> Self {
                match value {
                    $($name::$variant => Self::$variant,)+
                }
            }
        }
    };
}

mirrored! {
    /// Android's thermal status.
    #[expect(missing_docs, reason = "Android documents the values")]
    pub enum Thermal {
        Unknown,
        None,
        Light,
        Moderate,
        Severe,
        Critical,
        Emergency,
        Shutdown,
    }
}

mirrored! {
    /// Whether the platform saves power.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum PowerSave {
        Unknown,
        Off,
        On,
    }
}

mirrored! {
    /// Step in which the creation of a session failed.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum StartPhase {
        LibraryLoad,
        EpRegistration,
        SessionCreation,
        RecreationAfterRunError,
    }
}

mirrored! {
    /// The policy that an app gives ONNX Runtime for choosing devices (`OrtExecutionProviderDevicePolicy`).
    #[expect(missing_docs, reason = "ONNX Runtime documents the values")]
    pub enum SelectionPolicy {
        /// A policy that this version does not know.
        Unknown,
        Default,
        PreferCpu,
        PreferNpu,
        PreferGpu,
        MaxPerformance,
        MaxEfficiency,
        MinOverallPower,
    }
}

impl SelectionPolicy {
    /// Returns the policy that a binding of ONNX Runtime names, for example `PREFER_NPU` or
    /// `OrtExecutionProviderDevicePolicy.PREFER_NPU`. Case does not matter. An empty text names none.
    pub fn of_text(text: &str) -> Option<Self> {
        proto::SelectionPolicy::of_text(text).map(Self::from)
    }
}

mirrored! {
    /// Kind of the processor behind an EP.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum DeviceType {
        /// Several devices, or one that this version does not know.
        Unknown,
        Npu,
        Gpu,
        Cpu,
    }
}

impl DeviceType {
    /// Returns the type that an app names, for example by OpenVINO's option `device_type`: `NPU`, `GPU.1`. Case does not
    /// matter. A choice among several devices (`AUTO:GPU,CPU`) is unknown. An empty text names none.
    pub fn of_text(text: &str) -> Option<Self> {
        proto::DeviceType::of_text(text).map(Self::from)
    }
}

mirrored! {
    /// Kind of a failed upload.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum UploadFailureKind {
        Unreachable,
        Timeout,
        Tls,
        Unauthenticated,
        /// The collector asked to slow down.
        PushedBack,
        Server,
        /// The byte budget is used up.
        Budget,
    }
}

mirrored! {
    /// Outcome of a report at the collector.
    pub enum Outcome {
        /// Durable there for the first time.
        Stored,
        /// The collector has the same report already.
        Duplicate,
        /// A field is missing, out of bounds or contradicts another.
        RefusedMalformed,
        /// The encoded report exceeds the limit.
        RefusedTooLarge,
        /// The same key was stored with other bytes.
        RefusedConflict,
        /// A value that this collector does not know.
        RefusedUnsupported,
        /// The report names another app or environment than the key proves.
        RefusedWrongApp,
        /// The installation was deleted.
        RefusedDeleted,
        /// A quota is used up.
        RefusedQuota,
        /// Too much in flight, or the WAL is full.
        RefusedOverloaded,
        /// The WAL could not be written.
        RefusedStorage,
    }
}

mirrored! {
    /// A condition of runs that a device can report at all.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum ContextKind {
        Thermal,
        PowerSave,
        PerformanceMode,
        InputShape,
    }
}
