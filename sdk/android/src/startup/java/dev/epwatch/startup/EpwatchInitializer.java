package dev.epwatch.startup;

import android.content.Context;
import android.content.pm.ApplicationInfo;
import android.content.pm.PackageInfo;
import android.content.pm.PackageManager;
import android.os.Bundle;
import androidx.startup.Initializer;
import dev.epwatch.AndroidPlatform;
import dev.epwatch.Epwatch;
import dev.epwatch.EpwatchConfig;
import java.util.Collections;
import java.util.List;

/**
 * Starts the SDK before {@code Application.onCreate}, from {@code <meta-data>} of the manifest's {@code <application>}:
 * {@code dev.epwatch.ENDPOINT} and {@code dev.epwatch.APP_KEY}; optional are {@code APP_ID} (default: the package's name),
 * {@code ENVIRONMENT}, {@code DIRECTIVE_KEY_ID} with {@code DIRECTIVE_KEY}, and {@code DEBUG}. The version is the package's.
 *
 * <p>There is none for consent: the user gives it while the app runs, by {@code Epwatch.setConsent}.
 */
public final class EpwatchInitializer implements Initializer<Epwatch> {
    private static final String PREFIX = "dev.epwatch.";

    /** Texts that are missing or wrong are named by {@code Epwatch.explain()}. */
    @Override
    public Epwatch create(Context context) {
        Bundle found = metaData(context);
        if (found.getBoolean(PREFIX + "DEBUG")) Epwatch.setDebug(true);
        Epwatch.start(new AndroidPlatform(context), configOf(context, found));
        return Epwatch.INSTANCE;
    }

    @Override
    public List<Class<? extends Initializer<?>>> dependencies() {
        return Collections.emptyList();
    }

    private static EpwatchConfig configOf(Context context, Bundle found) {
        String appId = text(found, "APP_ID");
        EpwatchConfig.Builder config = new EpwatchConfig.Builder(
                appId.isEmpty() ? context.getPackageName() : appId, text(found, "ENDPOINT"), text(found, "APP_KEY"));
        config.setEnvironment(text(found, "ENVIRONMENT"));
        config.setDirectiveKey(text(found, "DIRECTIVE_KEY_ID"), text(found, "DIRECTIVE_KEY"));
        addVersion(context, config);
        return config.build();
    }

    private static Bundle metaData(Context context) {
        try {
            ApplicationInfo app = context.getPackageManager()
                    .getApplicationInfo(context.getPackageName(), PackageManager.GET_META_DATA);
            return app.metaData == null ? Bundle.EMPTY : app.metaData;
        } catch (PackageManager.NameNotFoundException impossible) {
            return Bundle.EMPTY;
        }
    }

    private static void addVersion(Context context, EpwatchConfig.Builder config) {
        try {
            PackageInfo info = context.getPackageManager().getPackageInfo(context.getPackageName(), 0);
            config.setAppVersion(info.versionName == null ? "" : info.versionName, String.valueOf(info.versionCode));
        } catch (PackageManager.NameNotFoundException impossible) {
            // Without a version of the app.
        }
    }

    /** Android reads a value of digits as a number. */
    @SuppressWarnings("deprecation")
    private static String text(Bundle found, String name) {
        Object value = found.get(PREFIX + name);
        return value == null ? "" : value.toString();
    }
}
